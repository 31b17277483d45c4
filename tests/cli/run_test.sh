#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies ballastctl run from the outside: report, table, sample and timeline of a local run; the commands that look at
# a run while it goes on; its end by Ctrl-C; and that nothing stays behind.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
head -c 20000 /usr/share/common-licenses/GPL-3 >text.txt
cat >job.yaml <<'YAML'
name: small
model: {family: gpt2, layers: 4, hidden: 32, heads: 2, vocab: 256, seq: 16}
data: {train: text.txt, validation: 0.1}
train: {steps: 5, micro_batches: 4}
pipeline: {stages: 2}
YAML

wait_for() { # command...
  for _ in $(seq 2400); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.05
  done
  fault "did not come: $*"
}
nothing_left() {
  equal "left in the runtime folder after $1" "" "$(ls -A "$XDG_RUNTIME_DIR")"
}

# ---- a whole run
try "$ctl" run job.yaml --local --summary --sample 30 --report report.jsonl --timeline step.svg
equal "exit code" 0 "$code"
equal "steps in the report" "1 2 3 4 5" "$(sed -n 's/^{"event":"step","step":\([0-9]*\),.*/\1/p' report.jsonl | xargs)"
equal "held-out losses in the report" 1 "$(grep -c '^{"event":"validation","step":5,' report.jsonl)"
equal "other lines in the report" 6 "$(wc -l <report.jsonl)"
contains "table" "STAGE  LAYERS" "$out"
contains "messages" "held-out" "$err"
contains "messages" "5 steps" "$err"
contains "timeline" "<svg" "$(head -c 400 step.svg)"
contains "timeline" "</svg>" "$(tail -c 20 step.svg)"
table_bytes=$(sed '/^ *1  2-3/q' out | wc -c)
equal "bytes of the sample and its line end" 31 "$(($(wc -c <out) - table_bytes))"
nothing_left "a run"

try "$ctl" run job.yaml --local --report - --steps 2
equal "lines on standard output" 2 "$(grep -c '"event":"step"' out)"

# ---- a GPU that is not there is found before anything starts
if [ ! -e /dev/nvidiactl ]; then # no driver, or no modules that could ask for one
  refused 2 "pipeline.device: " "$ctl" run job.yaml --local --check --set pipeline.device=cuda
  refused 2 "pipeline.device: " "$ctl" run job.yaml --local --set pipeline.device=cuda
fi

# ---- bits do not depend on the number of stages
losses() { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1"; }
try "$ctl" run job.yaml --local --report one.jsonl --set pipeline.stages=1
equal "losses on one stage and on two" "$(losses report.jsonl)" "$(losses one.jsonl)"

# ---- a driver may be told to resume a job without checkpoints, by a user it is a fault
refused 2 "checkpoint.folder: is missing; there is nothing to resume from" "$ctl" run job.yaml --local --resume

# ---- what cannot be written is said before anything starts
refused 3 "--report $work/none/report: cannot be written: its folder does not exist" \
  "$ctl" run job.yaml --local --report "$work/none/report"
refused 3 "--profile $work/none/p: cannot be written" "$ctl" run job.yaml --local --profile "$work/none/p"
refused 3 "--timeline nowhere/step.svg: cannot be written: its folder" "$ctl" run job.yaml --local --timeline nowhere/step.svg
refused 2 "it is a folder" "$ctl" run job.yaml --local --profile "$work"
refused 2 "--profile: needs at least 2 steps, the first of which is not recorded; this run has 1 to go (train.steps: 1)" \
  "$ctl" run job.yaml --local --steps 1 --profile "$work/p"
for flag in --svg --perfetto; do
  refused 3 "$flag $work/none/x.svg: cannot be written" "$ctl" simulate job.yaml $flag "$work/none/x.svg"
  refused 3 "$flag $work/none/x.svg: cannot be written" \
    "$ctl" schedule show --schedule 1f1b --stages 2 --micro-batches 2 $flag "$work/none/x.svg"
done
refused 3 "--write $work/none/x.yaml: cannot be written" "$ctl" plan job.yaml --write "$work/none/x.yaml"
refused 3 "--plot $work/none/x.svg: cannot be written" \
  "$ctl" schedule frontier --stages 2 --micro-batches 2 --plot "$work/none/x.svg"
refused 3 "--to $work/none/x.csv: cannot be written" \
  "$ctl" schedule export --schedule 1f1b --stages 2 --micro-batches 2 --to "$work/none/x.csv"
refused 2 "unknown flag" "$ctl" schedule export --schedule 1f1b --stages 2 --micro-batches 2 --svg x.svg
refused 2 "unknown flag" "$ctl" schedule show --schedule 1f1b --stages 2 --micro-batches 2 --to x.csv
refused 2 "must end in .svg or .png" "$ctl" run job.yaml --local --timeline step.gif
nothing_left "refusals"

# ---- looking at a run, and Ctrl-C
"$ctl" run job.yaml --local --steps 1000000 --report long.jsonl >long.out 2>&1 &
run=$!
for _ in $(seq 2400); do
  [ "$(wc -l 2>/dev/null <long.jsonl || echo 0)" -ge 3 ] && break
  sleep 0.05
done
try "$ctl" status -o json
equal "exit code of status" 0 "$code"
contains "status" '"phase": "running"' "$out"
try "$ctl" stages -o name
equal "stages" "0 1" "$(xargs <<<"$out")"
connected() { "$ctl" stages -o wide | grep -q "1: shm: same machine"; }
wait_for connected
equal "JSON in a table" "" "$("$ctl" stages -o wide | grep '{')"
try "$ctl" health
equal "exit code of health" 0 "$code"
kill -INT "$run"
wait "$run"
equal "exit code after Ctrl-C" 130 $?
contains "messages after Ctrl-C" "stopping after this step" "$(cat long.out)"
equal "whole lines after Ctrl-C" "$(wc -l <long.jsonl)" "$(grep -c '^{"event":"step".*"stores":\[{.*}\]}$' long.jsonl)"
refused 3 "no local run is live" "$ctl" status
nothing_left "Ctrl-C"

# ---- Ctrl-C twice, in the middle of a step that takes minutes
"$ctl" run job.yaml --local --set model.hidden=256 --set model.seq=256 --set train.micro_batches=20000 >twice.out 2>&1 &
run=$!
in_a_step() { "$ctl" stages -o json | grep -q '"running_step": 1,'; }
wait_for in_a_step
kill -INT "$run"
wait_for grep -q "stopping after this step" twice.out
kill -INT "$run"
wait "$run"
equal "exit code after Ctrl-C twice" 130 $?
contains "messages after Ctrl-C twice" "stopped before the first step" "$(cat twice.out)"
nothing_left "Ctrl-C twice"

# ---- no standard streams at all
"$ctl" run job.yaml --local --report closed.jsonl <&- >&- 2>&-
equal "exit code without standard streams" 0 $?
equal "steps without standard streams" 5 "$(grep -c '"event":"step"' closed.jsonl)"

# ---- tokens that are not bytes are sampled as numbers
head -c 4000 /dev/zero >tokens.bin
try "$ctl" run job.yaml --local --steps 1 --sample 3 --set data.train=tokens.bin --set data.format=bin
contains "the sample" "3 numbers" "$(grep -cE '^[0-9]+ [0-9]+ [0-9]+ $' out | sed 's/^1$/3 numbers/')"

# ---- the demo's job is a good one
if sha256sum --check --quiet "$root/examples/demo.sha256" >/dev/null 2>&1; then
  try "$ctl" run "$root/examples/demo.yaml" --local --check
  equal "exit code of the check of the demo" 0 "$code"
  if [ "$ctl" -ef "$root/build/bin/ballastctl" ]; then # the one that the demo takes
    try "$root/tools/demo/demo.sh" --bogus
    equal "exit code of the demo with a wrong flag" 2 "$code"
    equal "what the demo shows before it refuses a wrong flag" "" "$out"
  fi
fi
finish
