#!/usr/bin/env bash
# Everything that only a GPU can tell, in one command of at most 6.5 minutes and without a network.
#
#   bench/gpu_check.sh --make-prebuilt DIR            here: the programs, 20 MB at most, no GPU needed
#   bench/gpu_check.sh --prebuilt DIR --out FILE      there: FILE is JSON, the logs are in a .tgz beside it
#   bench/gpu_check.sh --dry-run [--prebuilt DIR]     the plan with its times, and what is missing here
#   bench/gpu_check.sh --help
#
# The work is done by the Python in bench/gpu_check/, for which any Python from 3.9 on will do (PYTHON=...).
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! command -v "$python" > /dev/null; then
  echo "gpu_check.sh: there is no $python, which it needs: PYTHON=... names another" >&2
  exit 2
fi
exec "$python" "$root/gpu_check" "$@"
