#!/bin/sh
# check.sh WHEEL [PYTHON]: installs the wheel into a new environment on a machine without compiler,
# headers, CUDA, Gloo, OpenBLAS and this checkout, and trains with it there.
#
# That machine is this one in a private mount namespace, where the compilers and those libraries are
# empty files and the folders are empty: nothing outside the namespace changes, and nothing is left.
# Needs root, or a kernel that lets users make namespaces of their own; pip must find numpy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1") python=${2:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$wheel" "$here/inside.sh" "$here/train.py" "$work"
as_root=
[ "$(id -u)" = 0 ] || as_root=--map-root-user
unshare --mount $as_root true || {
  echo "check.sh: no mount namespaces here: run it as root (in a container: --privileged)" >&2
  exit 1
}
# What a build left in the environment must not help.
env -u LD_LIBRARY_PATH -u LD_PRELOAD -u PYTHONPATH -u PYTHONHOME -u VIRTUAL_ENV \
  unshare --mount $as_root --propagation private \
  sh "$work/inside.sh" "$work" "$(cd "$here/../.." && pwd)" "$(command -v "$python")"
