#!/bin/sh
# nvcc_with_report.sh COMMAND ... -o OBJECT ...
# Compiles one CUDA source. What the compiler says goes to OBJECT.report, where a test reads what
# ptxas reports (-Xptxas=-v); the rest of it is printed as always.
object=
previous=
for argument; do
  [ "$previous" != -o ] || object=$argument
  previous=$argument
done
if [ -z "$object" ]; then
  echo "nvcc_with_report.sh: no -o OBJECT in: $*" >&2
  exit 2
fi
status=0
"$@" 2> "$object.report" || status=$?
sed -e '/^ptxas info/d' -e '/bytes stack frame, .* bytes spill/d' "$object.report" >&2
exit $status
