#!/usr/bin/env bash
# Does gradwire-trainer learn on a GPU, and do its checkpoints go to the CPU and back? One rank, and
# two that share the first GPU, on made-up images: a check, and no measure of speed.
#
#   bench/gpu_trainer.sh TRAINER NCCL
#
# TRAINER is the program gradwire-trainer, NCCL libnccl.so.2 or the folder nvidia/nccl of a Python
# environment. NCCL refuses two ranks on one GPU unless it takes them for two machines (NCCL_HOSTID,
# from 2.28 on). Exit: 0 right, 1 something was wrong, 2 usage.
set -u
export LC_ALL=C NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0
export NCCL_MAX_CTAS=2 CUDA_MODULE_LOADING=EAGER
if [ $# != 2 ]; then sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; fi
trainer=$1 nccl=$2
[ -x "$trainer" ] || { echo "gpu_trainer.sh: there is no program $trainer" >&2; exit 2; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# Four classes of 8 x 8 pixels: each lights one quadrant, with noise everywhere.
python3 - "$folder" << 'END' || exit 1
import random, struct, sys
random.seed(1)
for name, count in (("train", 320), ("t10k", 90)):
    labels = bytes(i % 4 for i in range(count))
    pixels = bytes(random.randrange(100) + (100 if y // 4 * 2 + x // 4 == label else 0)
                   for label in labels for y in range(8) for x in range(8))
    with open(f"{sys.argv[1]}/{name}-images-idx3-ubyte", "wb") as out:
        out.write(struct.pack(">IIII", 2051, count, 8, 8) + pixels)
    with open(f"{sys.argv[1]}/{name}-labels-idx1-ubyte", "wb") as out:
        out.write(struct.pack(">II", 2049, count) + labels)
END

failed=0
# learned WHAT: of rank 0's events in $folder/0.
learned() {
  local accuracy
  accuracy=$(sed -n 's/.*"final_accuracy": \([0-9.]*\).*/\1/p' "$folder/0" | tail -n 1)
  if [ "$code" = 0 ] && awk -v "a=${accuracy:-0}" 'BEGIN { exit !(a > 0.9) }'; then
    echo "ok: $1: accuracy $accuracy"
  else
    failed=1
    echo "FAILED (exit $code): $1: accuracy ${accuracy:-none}"
    tail -n 5 "$folder"/*.err
  fi
}

# on_gpu RANKS WHAT ARGUMENTS...
on_gpu() {
  local ranks=$1 what=$2 rank pids=()
  shift 2
  rm -rf "$folder/store"
  for ((rank = 0; rank < ranks; ++rank)); do
    NCCL_HOSTID=rank$rank timeout -k 5 60 "$trainer" --device cuda:0 --transport nccl \
      --plugin "$nccl" --store "file:$folder/store" --interface lo --rank $rank \
      --world-size "$ranks" --timeout-s 45 --data "$folder" --hidden 64,64 --batch-size 16 \
      --events "$folder/$rank" "$@" > /dev/null 2> "$folder/$rank.err" &
    pids+=($!)
  done
  code=0
  for rank in "${!pids[@]}"; do wait "${pids[$rank]}" || code=$?; done
  learned "$what"
}

for ranks in 1 2; do
  for method in none topk:5%,int4; do
    saved=$folder/saved-$ranks-$method
    job=(--method "$method" --convolutions 4 --checkpoint "$saved")
    on_gpu $ranks "$ranks ranks, $method, on the GPU" "${job[@]}" --epochs 6
    timeout -k 5 60 "$trainer" --world-size $ranks --data "$folder" --hidden 64,64 --batch-size 16 \
      --events "$folder/0" "${job[@]}" --epochs 8 --resume 1 > /dev/null 2> "$folder/0.err"
    code=$?
    learned "$ranks ranks, $method, going on on the CPU"
    on_gpu $ranks "$ranks ranks, $method, and on the GPU again" "${job[@]}" --epochs 10 --resume 1
  done
done
exit $failed
