# The machinery of gpu_check.sh, which sources it: stages with limits, and a JSON file that is
# replaced as a whole after each. Uses out, logs, root, prebuilt, deadline and stage_limit of there.

declare -A path_of=() tool=() why_not=()
stage_records=() table=()
verdict=running status='' current_group='' current_stage=''
gpu_name='' gpu_driver='' gpu_memory='' cuda_version='' commit='' no_gpu_reason=''
began=$SECONDS started_at=$(date -u +%Y-%m-%dT%H:%M:%SZ)

json_string() {
  local s=$1
  s=${s//\\/\\\\} s=${s//\"/\\\"} s=${s//$'\n'/\\n} s=${s//$'\t'/ }
  printf '"%s"' "${s//[^ -~]/?}"
}

commit_of_tree() {
  local head
  if ! head=$(git -C "$root" rev-parse --short HEAD 2>/dev/null); then
    echo unknown
  elif [ -n "$(git -C "$root" status --porcelain --untracked-files=no 2>/dev/null)" ]; then
    echo "$head, changed"
  else
    echo "$head"
  fi
}

# The first GPU's name, driver and memory: from nvidia-smi, else from what the driver shows in /proc.
describe_machine() {
  local line model
  commit=$(cat "$prebuilt/COMMIT" 2>/dev/null || commit_of_tree)
  cuda_version=$(nvcc --version 2>/dev/null | sed -n 's/.*release [0-9.]*, V//p')
  if [ "${CUDA_VISIBLE_DEVICES-0}" = '' ] || [ "${CUDA_VISIBLE_DEVICES-0}" = -1 ]; then
    no_gpu_reason='CUDA_VISIBLE_DEVICES hides it'
    return
  fi
  command -v nvidia-smi > /dev/null || no_gpu_reason='nvidia-smi is not in PATH'
  line=$(timeout -k 2 20 nvidia-smi --query-gpu=name,driver_version,memory.total \
    --format=csv,noheader 2>&1) && [[ $line == *,*,* ]]
  if [ $? = 0 ]; then
    IFS=, read -r gpu_name gpu_driver gpu_memory <<< "${line%%$'\n'*}"
    gpu_driver=${gpu_driver# } gpu_memory=${gpu_memory# }
    return
  fi
  no_gpu_reason=${no_gpu_reason:-nvidia-smi: ${line%%$'\n'*}}
  for model in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$model" ] || continue
    gpu_name=$(sed -n 's/^Model:[ \t]*//p' "$model")
    gpu_driver=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version)
    no_gpu_reason=''
    return
  done
}

# What is used when present: its version in `tool`, or the reason in `why_not`.
probe_tools() {
  local name version
  for name in compute-sanitizer ncu nsys; do
    tool[$name]='' why_not[$name]='not in PATH'
    command -v "$name" > /dev/null || continue
    if version=$(timeout -k 2 20 "$name" --version 2>&1); then
      tool[$name]=$(tail -n 1 <<< "$version")
    else
      why_not[$name]="does not run: ${version%%$'\n'*}"
    fi
  done
  for name in torch cupy pybind11; do
    tool[$name]=''
    if version=$(timeout -k 2 40 python3 -c "import $name; print($name.__version__)" 2>&1); then
      tool[$name]=$(tail -n 1 <<< "$version")
    else
      why_not[$name]=$(tail -n 1 <<< "$version")
    fi
  done
  tool[nccl]=$(timeout -k 2 40 python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' \
    2>/dev/null) || tool[nccl]=$(ldconfig -p 2>/dev/null |
    sed -n 's/.*=> \(.*libnccl\.so\.2\)$/\1/p' | head -n 1)
  why_not[nccl]="neither Python's nvidia.nccl nor ldconfig has libnccl.so.2"
}

# Why tests/python/on_gpu cannot run on this GPU; nothing where it can.
python_missing() {
  timeout -k 2 60 python3 "$root/tests/python/on_gpu/gpu_arrays.py" 2>&1 | tail -n 1
}

# Why the trainer cannot run here; nothing where it can. It needs OpenBLAS beside what others need.
trainer_missing() {
  local program=${path_of[gradwire-trainer]} said
  if [ ! -x "$program" ]; then
    echo "there is no $program"
  elif ! said=$(timeout -k 2 20 "$program" --help 2>&1); then
    echo "$program does not start: $(tail -n 1 <<< "$said")"
  elif [ "${tool[nccl]}" = '' ]; then
    echo "NCCL: ${why_not[nccl]}"
  fi
}

json_tools() {
  local name comma=''
  for name in "${!tool[@]}"; do
    printf '%s%s: ' "$comma" "$(json_string "$name")"
    if [ -n "${tool[$name]}" ]; then
      printf '{"version": %s}' "$(json_string "${tool[$name]}")"
    else
      printf '{"absent": %s}' "$(json_string "${why_not[$name]}")"
    fi
    comma=', '
  done
}

# The figures a program has written so far (it replaces its file as a whole), or null.
json_figures() {
  local text
  text=$(cat "$1" 2>/dev/null)
  if [[ $text == '{'*'}' ]]; then printf '%s' "$text"; else printf 'null'; fi
}

write_results() {
  local record comma=''
  {
    printf '{"verdict": %s, "started": "%s", "seconds": %d,\n' \
      "$(json_string "$verdict")" "$started_at" $((SECONDS - began))
    printf ' "machine": {"cpu": %s, "cores": %d, "kernel": %s},\n' \
      "$(json_string "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)")" \
      "$(nproc)" "$(json_string "$(uname -sr)")"
    printf ' "gpu": {"name": %s, "driver": %s, "memory": %s, "absent": %s},\n' \
      "$(json_string "$gpu_name")" "$(json_string "$gpu_driver")" \
      "$(json_string "$gpu_memory")" "$(json_string "$no_gpu_reason")"
    printf ' "cuda": %s, "commit": %s, "prebuilt": %s,\n' "$(json_string "$cuda_version")" \
      "$(json_string "$commit")" "$([ -n "$prebuilt" ] && echo true || echo false)"
    printf ' "tools": {%s},\n "stages": [' "$(json_tools)"
    for record in "${stage_records[@]}"; do
      printf '%s\n  %s' "$comma" "$record"
      comma=,
    done
    printf '],\n "bench": %s,\n "peers": %s}\n' \
      "$(json_figures "$logs/bench.json")" "$(json_figures "$logs/peers.json")"
  } > "$out.new" && mv -f "$out.new" "$out" || echo "gpu_check.sh: cannot write $out" >&2
}

# record NAME STATUS SECONDS REASON [LOG]
record() {
  local tail=''
  [ -z "${5-}" ] || tail=$(grep -v '^$' "$5" 2>/dev/null | tail -n 25)
  status=$2
  stage_records+=("{\"name\": $(json_string "$1"), \"status\": \"$2\", \"seconds\": $3, \
\"reason\": $(json_string "$4"), \"tail\": $(json_string "$tail")}")
  table+=("$(printf '%-12s %-8s %5ss  %s' "$1" "$2" "$3" "$4")")
  echo "  ${table[-1]}"
  write_results
}

skip() { record "$1" skipped 0 "$2"; }

# Ends a stage's whole process group; a process that the kernel does not let go is left behind.
end_group() {
  local tries
  kill -TERM -- "-$1" 2>/dev/null
  for tries in 1 2 3 4 5 6 7 8; do
    kill -0 -- "-$1" 2>/dev/null || return 0
    [ "$tries" != 4 ] || kill -KILL -- "-$1" 2>/dev/null
    sleep 0.25
  done
}

# stage NAME LIMIT COMMAND...: runs it in a process group of its own, until its limit, the stages'
# limit or the deadline. Sets `status` to ok, failed or timeout.
stage() {
  local name=$1 limit=$2 begin=$SECONDS left code log
  shift 2
  log=$logs/$name.log
  left=$((deadline - (SECONDS - began)))
  ((limit <= stage_limit)) || limit=$stage_limit
  ((limit <= left)) || limit=$left
  if ((limit <= 0)); then
    skip "$name" "the deadline of $deadline s has passed"
    return
  fi
  setsid "$@" > "$log" 2>&1 < /dev/null &
  current_group=$! current_stage=$name
  while kill -0 "$current_group" 2>/dev/null; do
    if ((SECONDS - begin >= limit)); then
      end_group "$current_group"
      current_group=''
      record "$name" timeout $((SECONDS - begin)) "stopped after $limit s" "$log"
      return
    fi
    sleep 0.1
  done
  wait "$current_group"
  code=$?
  end_group "$current_group"  # what it may have left running
  current_group=''
  if [ "$code" = 0 ] && grep -qE 'all tests of gpu_test: needs a GPU|no GPU' "$log"; then
    record "$name" failed $((SECONDS - begin)) "sees no GPU; $(summary_of "$log")" "$log"
  elif [ "$code" = 0 ]; then
    record "$name" ok $((SECONDS - begin)) "$(summary_of "$log")"
  else
    record "$name" failed $((SECONDS - begin)) "exit $code; $(summary_of "$log")" "$log"
  fi
}

# program_stage NAME PROGRAM LIMIT ARGUMENTS...
program_stage() {
  local name=$1 program=$2 limit=$3
  shift 3
  if [ -x "${path_of[$program]}" ]; then
    stage "$name" "$limit" "${path_of[$program]}" "$@"
  else
    skip "$name" "there is no ${path_of[$program]}"
  fi
}

# GoogleTest's counts, or the last line.
summary_of() {
  local line
  line=$(grep -E '^\[  (PASSED|FAILED)  \] [0-9]+ test|^\[  SKIPPED \] all tests' "$1" | paste -sd ' ')
  echo "${line:-$(grep -v '^$' "$1" | tail -n 1 | cut -c 1-120)}"
}

interrupted() {
  trap '' INT TERM
  [ -z "$current_group" ] || end_group "$current_group"
  verdict=interrupted
  record "${current_stage:-start}" stopped $((SECONDS - began)) "SIG$1"
  exit "$2"
}

finish() {
  local line
  verdict=passed
  for line in "${table[@]}"; do
    case $line in *' failed '* | *' timeout '*) verdict=failed ;; esac
  done
  write_results
  for line in bench peers; do
    [ ! -s "$logs/$line.log" ] || { echo; cat "$logs/$line.log"; }
  done
  echo
  printf '%s\n' "${table[@]}"
  echo "gpu_check.sh: $verdict after $((SECONDS - began)) s; wrote $out"
  [ "$verdict" = passed ]
  exit $?
}
