#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Parts 1 and 2 of run.sh (or those that are named, or quick), in a copy of the tree, on a device that is not there and with tiny sizes: everything
# that is right or wrong passes, every figure is measured, and is below what is promised.
#   run_test.sh SOURCE BUILD_FOLDER [parts]
set -euo pipefail
source=$1 build=$2 parts=${3:-1 2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$source" && git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} cp --parents -p {} "$work" 2>/dev/null) || true
code=0
mkdir -p "$work/results"
(cd "$work" && unset BALLAST_BIN && OUT="$work/results" BALLAST_RUN_SECONDS=7200 BALLAST_TRY=1 BALLAST_TEST_STEPS=4 BALLAST_MODULES="$build/tests/late" \
  tests/gpu/run.sh "$parts") \
  >"$work/out" 2>&1 || code=$?
tail -5 "$work/out"
wrong() {
  echo "$1" && cat "$work/out"
  exit 1
}
[ $code = 1 ] || wrong "ended with $code; figures of a device that is none should be below"
expected=()
[[ $parts == *1* ]] && expected+=(operations trajectories path-ipc path-ipc-legacy path-nccl path-nccl-stress ops stage)
[[ $parts == *2* ]] && expected+=(services stores path-blocks)
if [ "$parts" = quick ]; then # all of it has time, on a device that is not there
  expected=(trajectories path-ipc path-nccl-stress path-nccl ops stage)
  for operation in $("$build/tests/gpu-runner" names); do
    expected+=("operation-$operation")
  done
fi
tar -tzf "$work/results/logs.tar.gz" >"$work/packed" || wrong "the logs were not packed"
for name in "${expected[@]}"; do
  grep -q "^== $name: ok" "$work/out" || wrong "$name is not ok"
  grep -q "^$name: ok" "$work/out" || wrong "$name is not among the last lines"
  grep -q "^logs/$name.log$" "$work/packed" || wrong "the log of $name is not packed"
done
grep "FAILED with" "$work/out" | grep -vE "^== (path-ipc|path|ops|stage)-judged: FAILED with 1, " && wrong "more failed than figures"
grep -q "not measured" "$work/out" && wrong "a figure was not measured"
echo "ok"
