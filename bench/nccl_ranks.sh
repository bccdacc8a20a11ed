#!/usr/bin/env bash
# Are the verbs over NCCL right, and the Reducer over them? Several ranks, as processes, on the first GPU: a correctness check
# on a machine with one GPU, and no measure of speed.
#
#   bench/nccl_ranks.sh GRADWIRE_CHECK [NCCL [REDUCER_RANK]]
#
# GRADWIRE_CHECK is the program gradwire-check, REDUCER_RANK the program nccl_reducer_rank, which
# compares reducers on the GPU with the CPU's, bit for bit; NCCL is libnccl.so.2, or the folder nvidia/nccl of a
# Python environment, and is looked for when it is not given. NCCL refuses two ranks on one GPU unless
# it takes them for two machines (NCCL_HOSTID, from 2.28 on, over sockets) or is told that they share
# it (NCCL_MULTI_RANK_GPU_ENABLE, from 2.30.3 on). Says what it skips and why. Exit: 0 all that could
# run was right, 1 something was wrong, 2 usage, 3 nothing could run.
set -u
export LC_ALL=C
case ${1-} in
  '' | -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
check=$1 nccl=${2-} reducer=${3-}
for program in "$check" ${reducer:+"$reducer"}; do
  [ -x "$program" ] || { echo "nccl_ranks.sh: there is no program $program" >&2; exit 2; }
done
if [ -z "$nccl" ]; then
  nccl=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null ||
    ldconfig -p 2>/dev/null | sed -n 's/.*=> \(.*libnccl\.so\.2\)$/\1/p' | head -n 1)
fi
[ -n "$nccl" ] || { echo "skipped: no NCCL: neither Python's nvidia.nccl nor ldconfig has it"; exit 3; }

library=$nccl
[ ! -d "$nccl" ] || library=$nccl/lib/libnccl.so.2
version=$(python3 -c 'import ctypes, sys
v = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v))
print(v.value)' "$library" 2>&1 | tail -n 1)
[[ $version =~ ^[0-9]+$ ]] || { echo "skipped: $library does not say its version: $version"; exit 3; }
echo "NCCL $((version / 10000)).$((version / 100 % 100)).$((version % 100)) ($library)"

folder=$(mktemp -d) || exit 3
trap 'rm -rf "$folder"' EXIT
ran=0 failed=0

# ranks COUNT NAME=VALUE...: both programs; %r in a value is the rank.
ranks() {
  started "$@" "$check" --transport nccl --plugin "$nccl" --device 0 --max-ctas 2 \
    --largest 70001 --timeout 45
  [ -z "$reducer" ] || started "$@" "$reducer" "$library" 0
}

# started COUNT NAME=VALUE... PROGRAM ARGUMENTS...
started() {
  local count=$1 rank setting code=0 place pids=() what
  shift
  place=$(mktemp -d "$folder/run-XXXX")
  for ((rank = 0; rank < count; ++rank)); do
    setting=("${@//%r/$rank}")
    env NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 \
      NCCL_MAX_CTAS=2 CUDA_MODULE_LOADING=EAGER \
      GRADWIRE_RANK=$rank GRADWIRE_WORLD_SIZE="$count" GRADWIRE_STORE="file:$place/store" \
      timeout -k 5 75 env "${setting[@]}" > "$place/$rank.log" 2>&1 &
    pids+=($!)
  done
  for rank in "${!pids[@]}"; do wait "${pids[$rank]}" || code=$?; done
  ran=$((ran + 1))
  what="$count ranks, $1: $(basename "$2")"
  if [ "$code" = 0 ]; then
    echo "ok: $what"
  else
    failed=$((failed + 1))
    echo "FAILED (exit $code): $what"
    tail -n 5 "$place"/*.log
  fi
}

if ((version >= 22800)); then
  ranks 2 NCCL_HOSTID=rank%r
  ranks 3 NCCL_HOSTID=rank%r
else
  echo "skipped: ranks by NCCL_HOSTID: needs NCCL 2.28"
fi
if ((version >= 23003)); then
  ranks 2 NCCL_MULTI_RANK_GPU_ENABLE=1
  ranks 3 NCCL_MULTI_RANK_GPU_ENABLE=1
else
  echo "skipped: ranks by NCCL_MULTI_RANK_GPU_ENABLE: needs NCCL 2.30.3"
fi
echo "NCCL on one GPU: $((ran - failed)) of $ran runs were right"
((ran > 0)) || exit 3
((failed == 0))
