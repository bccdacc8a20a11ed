#!/usr/bin/env bash
# Everything that only a GPU can tell, in one command and at most 9 minutes, without a network:
# builds, runs the tests on the device, times the kernels beside a device copy and their peers, runs
# compute-sanitizer, and leaves one JSON file that is whole after every stage.
#
#   bench/gpu_check.sh [--out FILE] [--build DIR] [--deadline SECONDS] [--stage-limit SECONDS]
#   bench/gpu_check.sh --prebuilt DIR [--rebuild] ...  run the programs in DIR; --rebuild: the library
#                                                      is built here, and used instead of DIR's
#   bench/gpu_check.sh --make-prebuilt DIR             build those programs (no GPU needed)
#
# Needs a driver, and unless prebuilt nvcc, cmake, ninja and a C++20 compiler. GoogleTest, torch,
# the installed package with CuPy, compute-sanitizer are used where they are. A stage that fails or runs out of time says so and the
# rest goes on. Exit: 0 passed, or there is no GPU; 1 a stage failed; 2 usage; 130 interrupted.
# No setting of the GPU is changed.
set -u
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/bench/gpu_check_stages.sh"

usage() { sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
misuse() { echo "gpu_check.sh: $*; --help says what there is" >&2; exit 2; }
seconds_in() {  # NAME VALUE MOST
  [[ $2 =~ ^[1-9][0-9]{0,3}$ && $2 -le $3 ]] || misuse "$1 is '$2', must be 1 to $3 seconds"
}

out='' build=$root/build/gpu-check prebuilt='' make_prebuilt='' rebuild=no
deadline=530 stage_limit=9999
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --rebuild) rebuild=yes; shift; continue ;;
    --out | --build | --prebuilt | --make-prebuilt | --deadline | --stage-limit) ;;
    *) misuse "unknown argument '$1'" ;;
  esac
  [ $# -ge 2 ] || misuse "$1 needs a value"
  case $1 in
    --out) out=$2 ;;
    --build) build=$2 ;;
    --prebuilt) prebuilt=$2 ;;
    --make-prebuilt) make_prebuilt=$2 ;;
    --deadline) seconds_in "$1" "$2" 530; deadline=$2 ;;
    --stage-limit) seconds_in "$1" "$2" 9999; stage_limit=$2 ;;
  esac
  shift 2
done
[ -z "$prebuilt" ] || [ -d "$prebuilt/bin" ] || misuse "--prebuilt $prebuilt: there is no $prebuilt/bin"
[ -z "$prebuilt" ] || prebuilt=$(cd "$prebuilt" && pwd)
build=$(realpath -m "$build")
[ "$rebuild" = no ] || [ -n "$prebuilt" ] || misuse "--rebuild goes with --prebuilt"

programs=(gpu_test core_test cuda_bench gradwire-check nccl_reducer_rank gradwire-trainer)
# The trainer is a target where OpenBLAS and zlib are: TARGET..., and it if FOLDER was configured so.
targets_in() {  # FOLDER TARGET...
  local folder=$1
  shift
  targets=("$@")
  if grep -qs '^build gradwire_trainer: ' "$folder/build.ninja"; then
    targets+=(gradwire_trainer)
  fi
}

# --- the folder of programs built beforehand
if [ -n "$make_prebuilt" ]; then
  set -e
  mkdir -p "$make_prebuilt/bin" "$make_prebuilt/lib"
  make_prebuilt=$(cd "$make_prebuilt" && pwd)
  cd "$root"
  cmake --preset prebuilt -G Ninja
  targets_in build/prebuilt gpu_test core_test cuda_bench gradwire_check nccl_reducer_rank
  cmake --build build/prebuilt --target "${targets[@]}"
  cp build/prebuilt/{tests/simt/gpu_test,tests/kernels/core_test,bench/cuda_bench} \
    build/prebuilt/comm/gradwire-check build/prebuilt/tests/comm/nccl_reducer_rank \
    "$make_prebuilt/bin/"
  layers=(kernels optimizers comm)
  if [ "${targets[-1]}" = gradwire_trainer ]; then
    cp build/prebuilt/bench/gradwire-trainer "$make_prebuilt/bin/"
    [ ! -e build/prebuilt/planner/libgradwire_planner.so ] || layers+=(planner)
  fi
  for layer in "${layers[@]}"; do
    cp -L "build/prebuilt/$layer/libgradwire_$layer".so.?.? "$make_prebuilt/lib/"
  done
  strip "$make_prebuilt"/bin/* "$make_prebuilt"/lib/*
  commit_of_tree > "$make_prebuilt/COMMIT"
  megabytes=$(du -sm "$make_prebuilt" | cut -f1)
  echo "gpu_check.sh: $make_prebuilt: $megabytes MB, commit $(cat "$make_prebuilt/COMMIT")"
  [ "$megabytes" -lt 60 ] || { echo "gpu_check.sh: more than 60 MB" >&2; exit 1; }
  exit 0
fi

# --- where the results go, and what this machine is
if [ -z "$out" ]; then
  mkdir -p "$root/bench/results"
  out=$root/bench/results/gpu-$(date -u +%Y%m%dT%H%M%SZ).json
fi
mkdir -p "$(dirname "$out")" || exit 2
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
logs=${out%.json}-logs
trap 'interrupted INT 130' INT
trap 'interrupted TERM 143' TERM
describe_machine
if [ -z "$gpu_name" ]; then
  verdict='no GPU'
  write_results
  echo "gpu_check.sh: no GPU: $no_gpu_reason; wrote $out"
  exit 0
fi
mkdir -p "$logs" || exit 2
probe_tools
write_results
echo "gpu_check.sh: $gpu_name, driver $gpu_driver, CUDA $cuda_version, commit $commit"

# --- build
configure=(cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRADWIRE_CUDA=ON
  -DGRADWIRE_GLOO=OFF -DGRADWIRE_PYTHON=OFF)
if [ -n "$prebuilt" ]; then
  for program in "${programs[@]}"; do path_of[$program]=$prebuilt/bin/$program; done
  if [ "$rebuild" = yes ]; then
    stage configure 60 "${configure[@]}" -DGRADWIRE_TESTS=OFF
    stage build 240 cmake --build "$build" --target gradwire_kernels gradwire_optimizers \
      gradwire_comm
    if [ "$status" = ok ]; then
      export LD_LIBRARY_PATH=$build/kernels:$build/optimizers:$build/comm${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
  fi
else
  path_of=([gpu_test]=$build/tests/simt/gpu_test [core_test]=$build/tests/kernels/core_test
    [cuda_bench]=$build/bench/cuda_bench [gradwire-check]=$build/comm/gradwire-check
    [nccl_reducer_rank]=$build/tests/comm/nccl_reducer_rank
    [gradwire-trainer]=$build/bench/gradwire-trainer)
  stage configure 60 "${configure[@]}"
  tests=()
  if grep -qs '^-- gradwire: TESTS on' "$logs/configure.log"; then
    tests=(gpu_test core_test nccl_reducer_rank)
  fi
  targets_in "$build" cuda_bench "${tests[@]}" gradwire_check
  # Some programs are better than none: what does not build is missed by its own stage.
  stage build 270 cmake --build "$build" --target "${targets[@]}" -- -k 0
fi

# --- run: what matters most comes first
program_stage gpu_test gpu_test 200
program_stage bench cuda_bench 120 --json "$logs/bench.json"
program_stage core_test core_test 40
if [ "${tool[nccl]}" = '' ]; then
  skip nccl "NCCL: ${why_not[nccl]}"
elif [ ! -x "${path_of[gradwire-check]}" ]; then
  skip nccl "there is no ${path_of[gradwire-check]}"
else
  ranks=("${path_of[gradwire-check]}" "${tool[nccl]}")
  [ ! -x "${path_of[nccl_reducer_rank]}" ] || ranks+=("${path_of[nccl_reducer_rank]}")
  stage nccl 120 "$root/bench/nccl_ranks.sh" "${ranks[@]}"
fi
missing=$(trainer_missing)
if [ -n "$missing" ]; then
  skip trainer "$missing"
else
  stage trainer 60 "$root/bench/gpu_trainer.sh" "${path_of[gradwire-trainer]}" "${tool[nccl]}"
fi
missing=$(python_missing)
if [ -n "$missing" ]; then
  skip python "$missing"
else
  stage python 90 python3 -m pytest -q -p no:cacheprovider "$root"/tests/python/on_gpu/check_*.py
fi
missing=$(timeout -k 2 60 python3 "$root/bench/gpu_hook.py" --why-not 2>&1 | tail -n 1)
if [ -n "$missing" ]; then
  skip hook "$missing"
else
  stage hook 110 python3 "$root/bench/gpu_hook.py"
fi
if [ "${tool[torch]}" = '' ]; then
  skip peers "torch: ${why_not[torch]}"
else
  stage peers 90 python3 "$root/bench/gpu_peers.py" --json "$logs/peers.json"
fi
short='*Launchers*:*Replay*:*WidenEveryHalf*:*PackTwoBits*:*MendAGuess*:*TakeEveryType*'
for check in memcheck racecheck synccheck initcheck; do
  if [ "${tool[compute-sanitizer]}" = '' ]; then
    skip "$check" "compute-sanitizer: ${why_not[compute-sanitizer]}"
  elif [ ! -x "${path_of[gpu_test]}" ]; then
    skip "$check" "gpu_test is not there"
  else
    stage "$check" 60 compute-sanitizer --tool "$check" --error-exitcode 9 \
      "${path_of[gpu_test]}" --gtest_brief=1 "--gtest_filter=$short"
  fi
done

finish
