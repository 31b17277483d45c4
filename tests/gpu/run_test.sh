#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Parts 1 and 2 of run.sh (or those that are named, or quick, or claims), in a copy of the tree, on a device that is not there and
# with tiny sizes: everything that is right or wrong passes, every figure is measured, and is below what is promised. quick and
# claims are also to fit into their eight minutes, but for the build, which has other machines.
#   run_test.sh SOURCE BUILD_FOLDER [parts]
# After quick, claims goes on with what quick has built; claims alone takes the programs of BUILD_FOLDER, services among them.
set -euo pipefail
source=$1 build=$2 parts=${3:-1 2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$source" && git ls-files -z --cached --others --exclude-standard | xargs -0 -I{} cp --parents -p {} "$work" 2>/dev/null) || true
mkdir -p "$work/results" "$work/tools-of-nvidia"
# Builds are for one GPU alone, and the head of the table has clocks.
cat >"$work/tools-of-nvidia/nvidia-smi" <<'SMI'
#!/bin/sh
case "$*" in
*compute_cap\ *noheader*) echo 9.0 ;;
*query-gpu=name\ *) echo "a GPU that is not there" ;;
*utilization.gpu*) printf '%s\n' "utilization.gpu [%], clocks.current.sm [MHz]" "3 %, 345 MHz" "98 %, 1980 MHz" ;;
*query-gpu*) printf '%s\n' "name, driver_version" "a GPU that is not there, 999.1" ;;
*) exit 1 ;;
esac
SMI
chmod +x "$work/tools-of-nvidia/nvidia-smi"

run() { # parts, seconds; its exit code in `code`, what it says in $work/out
  code=0
  (cd "$work" && export PATH="$work/tools-of-nvidia:$PATH" CCACHE_BASEDIR="$work" CCACHE_NOHASHDIR=1 OUT="$work/results" \
    BALLAST_RUN_SECONDS="$2" BALLAST_TRY=1 BALLAST_TEST_STEPS=4 BALLAST_MODULES="$build/tests/late" && tests/gpu/run.sh "$1") \
    >"$work/out" 2>&1 || code=$?
}
wrong() {
  echo "$1" && cat "$work/out"
  exit 1
}
expect_ok() { # names...
  tar -tzf "$work/results/logs.tar.gz" >"$work/packed" || wrong "the logs were not packed"
  for name in "$@"; do
    grep -q "^== $name: ok" "$work/out" || wrong "$name is not ok"
    grep -q "^$name: ok" "$work/out" || wrong "$name is not among the last lines"
    grep -q "^logs/$name.log$" "$work/packed" || wrong "the log of $name is not packed"
  done
  grep "FAILED with" "$work/out" | grep -vE "^(== )?(path-ipc|path-edges|path|ops|stage|claims-copies)-judged: FAILED with 1, " &&
    wrong "more failed than figures"
  ! grep -q "not measured" "$work/out" || wrong "a figure was not measured"
}
expect_fit() { # what; all but the build within its time
  sed -n '/^build: /,$p; /^[a-z0-9._-]*: \(ok\|FAILED\|SKIPPED\)/p' "$work/out" | grep -v '^==' | sort -u >"$work/ends"
  cat "$work/ends"
  local seconds
  seconds=$(($(sed -n 's/^[a-z].*: ok (\([0-9]*\) s)$/\1/p' "$work/ends" | paste -sd+)))
  echo "$1: checks took $seconds s, $(grep -o '^build: .*' "$work/ends" || echo 'nothing was built')"
  [ "$seconds" -le 480 ] || wrong "$1 does not fit eight minutes"
}

stages=(gpt2-1.5b-{flash-none,naive-none,naive-attention,flash-full,naive-full} gpt2-1.5b-1024-flash-none
  llama-7b-{flash-none,naive-none,naive-attention,flash-full,naive-full} llama-7b-head
  gpt3-96b-{naive-attention,flash-none,naive-none} llama-65b-{naive-none,naive-attention,flash-none})
services=(bits-flash bits-naive parking-1 parking-2 parking-4)
if [ "$parts" = claims ]; then
  export BALLAST_BIN=$build/bin
  run claims 7200
  [ $code -le 1 ] || wrong "ended with $code"
  expect_ok "${stages[@]/#/claims-}" "${services[@]/#/claims-}" claims-copies table
  for words in "| gpt2-1.5b | 6 | 32 | flash | none | 8 | " "| gpt3-96b, 1 of 4 parts | 2 | 32 | naive | attention | 4 | " \
    "- driver_version: 999.1" "- clocks.current.sm \[MHz\] while it computed: 1980 (1980 to 1980, 1 samples)" \
    "- claims-parking-2: parking: 2 stages, " "- claims-llama-65b-naive-none: b 1 to 2: at most "; do
    grep -q "^$words" "$work/build-gpu/logs/table.md" || wrong "no '$words' in the table"
  done
  cat "$work/build-gpu/logs/table.md"
  expect_fit claims
  # Without time nothing is measured, which is no good end: not even with a table of the run before.
  run claims 12
  [ $code = 1 ] || wrong "ended with $code, with no time"
  grep -q "^claims-bits-flash: SKIPPED: no time left" "$work/out" || wrong "a check without time is not named"
  grep -q "^table: FAILED with 1" "$work/out" || wrong "rows that are not there are no failure"
  grep -q "^not measured: .*claims-llama-65b-flash-none b 4" "$work/out" || wrong "a row that is not there is not named"
  echo "ok"
  exit 0
fi
unset BALLAST_BIN
run "$parts" 7200
tail -5 "$work/out"
[ $code = 1 ] || wrong "ended with $code; figures of a device that is none should be below"
expected=()
[[ $parts == *1* ]] && expected+=(operations trajectories path-ipc path-ipc-legacy path-edges path-edges-legacy path-nccl path-nccl-stress ops stage)
[[ $parts == *2* ]] && expected+=(services ranks stores path-blocks)
if [ "$parts" = quick ]; then # all of it has time, on a device that is not there
  expected=(path-ipc path-edges path-nccl-stress path-nccl ops stage)
  for name in $("$build/tests/gpu-runner" runs); do
    expected+=("trajectory-$name")
  done
  for operation in $("$build/tests/gpu-runner" names); do
    expected+=("operation-$operation")
  done
fi
expect_ok "${expected[@]}"
if [ "$parts" = quick ]; then
  expect_fit quick
  run claims 7200
  [ $code -le 1 ] || wrong "claims ended with $code"
  expect_ok "${stages[@]/#/claims-}" claims-copies table
  for name in "${services[@]}"; do
    grep -q "^claims-$name: SKIPPED: there are no services" "$work/out" || wrong "claims-$name is not skipped by name"
  done
  expect_fit "claims on the build of quick"
fi
echo "ok"
