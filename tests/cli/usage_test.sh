#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies what wrong commands and wrong jobs are told: exit code, message, and that nothing is started for them.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
head -c 4000 /usr/share/common-licenses/GPL-3 >text.txt
cat >job.yaml <<'YAML'
model: {family: gpt2, layers: 4, hidden: 64, heads: 4, vocab: 256, seq: 32}
data: {train: text.txt}
train: {steps: 2}
pipeline: {stages: 2}
YAML

try "$ctl" --help
equal "exit code of --help" 0 "$code"
contains "list of commands" "train a job" "$out"
refused 2 "usage: ballastctl COMMAND" "$ctl"
refused 2 "did you mean 'status'" "$ctl" stauts
refused 2 "did you mean 'configuration'" "$ctl" config
refused 2 "'frobnicate' is no command of ballastctl; --help lists them" "$ctl" frobnicate
for command in run status stages health preflight schedule simulate plan estimate configuration version; do
  try "$ctl" "$command" --help
  equal "exit code of $command --help" 0 "$code"
  contains "help of $command" "usage: ballastctl $command" "$out"
done
try "$ctl" version -o json
contains "version" '"name": "ballast"' "$out"

refused 2 "usage: ballastctl run" "$ctl" run
refused 2 "did you mean '--report'" "$ctl" run job.yaml --reprot x
refused 2 "ballastctl run: an argument is empty; usage: ballastctl run JOB.yaml" "$ctl" run ""
refused 2 "unexpected argument 'train.steps'; usage: ballastctl configuration" "$ctl" configuration train.steps
refused 2 "start everything here with --local" "$ctl" run job.yaml
try "$ctl" run job.yaml --local --check
equal "exit code of a check" 0 "$code"
equal "output of a check" "job.yaml: valid: 2 steps on 2 stages; nothing was started" "$out"
refused 2 "--set checkpoint.folder: $work/job.yaml/below: cannot create folder: Not a directory" \
  "$ctl" run job.yaml --local --check --set checkpoint.folder=job.yaml/below
try "$ctl" run job.yaml --local --check --set checkpoint.folder=new/folder
equal "exit code of a check of a new folder" 0 "$code"
equal "what a check creates" "no" "$(test -e new && echo yes || echo no)"
mkdir gone
refused 3 "the current folder cannot be named: No such file or directory; change to another" \
  sh -c "cd gone; rmdir ../gone; '$ctl' run '$work/job.yaml' --local --check"
for command in --help "run --help" "policy --help"; do
  try sh -c "\"$ctl\" $command >/dev/full"
  equal "exit code of $command on a full disk" 1 "$code"
  contains "message of $command on a full disk" "cannot print: No space left on device" "$err"
done
refused 2 "--predict: job.yaml is no profile: line 1: " "$ctl" run job.yaml --local --predict job.yaml
refused 2 "ballastctl run --profile FILE records one" "$ctl" run job.yaml --local --predict text.txt
refused 2 "nothing.yaml: cannot open" "$ctl" run nothing.yaml --local
refused 2 "did you mean 'train.steps'" "$ctl" run job.yaml --local --set train.stps=4
refused 2 "job.yaml: model.layers: is missing" "$ctl" run job.yaml --local --set model.layers=null
refused 2 "heads do not divide" "$ctl" run job.yaml --local --set model.heads=5
refused 2 "5 stages" "$ctl" run job.yaml --local --set pipeline.stages=5
refused 2 "missing.txt: cannot open" "$ctl" run job.yaml --local --set data.train=missing.txt
refused 2 "too few for one window" "$ctl" run job.yaml --local --set model.seq=4000
refused 2 "stage 0, operation 1 (0F1)" "$ctl" run job.yaml --local --set memory.slots=1
refused 2 "token" "$ctl" run job.yaml --local --set model.vocab=64
refused 2 "checkpoint.folder" "$ctl" run job.yaml --local --resume
for command in plan simulate; do
  refused 2 '--set balance.slow_paths: "x": must name two stages' "$ctl" $command job.yaml --set 'balance.slow_paths=[x]'
  refused 2 "there is no stage 9, they go from 0 to 1" "$ctl" $command job.yaml --set 'balance.slow_paths=["0-9=2"]'
done
try "$ctl" plan job.yaml --schedule gpipe --set 'balance.slow_paths=["0-1=2"]' -o json
equal "exit code of a plan of a job with paths" 0 "$code"
contains "message of a plan of a job with paths" "warning: balance.slow_paths: the job's are not planned with" "$err"
contains "warnings of a plan of a job with paths" '"balance.slow_paths: the job' "$out"
try "$ctl" plan job.yaml --schedule gpipe -o json
equal "messages of a plan of a job without paths" "" "$err"
try "$ctl" simulate job.yaml --set balance.policy=offload --set balance.host=1GiB -o json
equal "exit code of offload without a limit" 0 "$code"
contains "message of offload without a limit" "warning: balance.policy: offload parks nothing here" "$err"
contains "warnings of offload without a limit" '"balance.policy: offload parks nothing here' "$out"
printf 'modle: {layers: 4}\n' >wrong.yaml
refused 2 "wrong.yaml:1:1: unknown section 'modle'; did you mean 'model'?" "$ctl" run wrong.yaml --local

refused 2 "the name must end in .json, .svg or .png" "$ctl" trace --to x.gif
refused 3 "no local run is live" "$ctl" trace --to x.json
refused 3 "no local run is live" "$ctl" status
refused 2 "--numa-node 1023: this machine has no NUMA node 1023; its nodes are" "$bin/activation-store" --listen \
  "unix:$work/store" --numa-node 1023
refused 2 "a port from 0 to 65535" "$bin/activation-store" --listen "unix:$work/store" --data-tcp 127.0.0.1:nowhere
refused 2 "a port from 0 to 65535" "$bin/stage-service" --listen 127.0.0.1:99999
refused 2 "drop" "$ctl" policy set
refused 2 "'-1' is no cap: a whole number from 1 on" "$ctl" policy set drop -1
refused 2 "'-1' is no version" "$ctl" policy rollback -1
refused 2 "'-1' is no number of bytes" "$ctl" quota job -1
refused 2 "name leases, such as 0/17, or a session" "$ctl" leases revoke
refused 5 "unix:$work/nobody" "$ctl" status --endpoint "unix:$work/nobody"
refused 2 "--output must be one of table" "$ctl" status -o tabel

equal "left in the runtime folder" "" "$(ls "$XDG_RUNTIME_DIR")"
finish
