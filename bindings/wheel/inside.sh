#!/bin/sh
# inside.sh WORK CHECKOUT PYTHON: what check.sh runs in the namespace.
set -eu
work=$1 checkout=$2 python=$(realpath "$3")
cd "$work"
fail() { echo "wheel: $*" >&2; exit 1; }

hide_folder() { [ ! -d "$1" ] || mount -t tmpfs -o ro none "$1"; }
hide_file() { mount --bind /dev/null "$1"; }

# A name may be a link, and stand in several folders of PATH.
tools="cc c++ gcc g++ clang clang++ c89 c99 ld as nvcc cmake ninja make ccache"
for tool in $tools; do
  while path=$(command -v "$tool"); do
    hide_file "$(realpath "$path")"
  done
done
libraries="libgloo libhiredis libibverbs libnl- libuv libopenblas libblas liblapack libgfortran
           libquadmath libmpi libcudart libcuda libnccl libnvrtc"
for library in $libraries; do
  find /lib /usr/lib /usr/local/lib /usr/local/cuda* /opt -name "$library*.so*" -type f \
    2>/dev/null | while read -r file; do hide_file "$file"; done
done
hide_folder /usr/include
hide_folder /usr/lib/gcc
for folder in /usr/local/cuda*; do [ -L "$folder" ] || hide_folder "$folder"; done
hide_folder "$checkout"

for tool in $tools; do
  ! command -v "$tool" >/dev/null || fail "$tool is still there"
done
"$python" - <<'END'
import ctypes
for name in ("libgloo.so.0", "libgloo.so", "libopenblas.so.0", "libmpi.so.40", "libcudart.so"):
    try:
        ctypes.CDLL(name)
    except OSError:
        continue
    raise SystemExit(f"wheel: {name} is still there")
END

"$python" -m venv venv
pip() { venv/bin/python -m pip -q --disable-pip-version-check "$@"; }
pip install "$work"/gradwire-*.whl
venv/bin/python train.py requirements
venv/bin/gradwire doctor || fail "the doctor finds something broken"
venv/bin/gradwire doctor --json | venv/bin/python train.py doctor
venv/bin/python train.py ranks
pip install "$(ls "$work"/gradwire-*.whl)[bench]"
XDG_CACHE_HOME=$work venv/bin/python train.py bench
