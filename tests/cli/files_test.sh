#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that a file which a command names and which is not there, or is a folder, is a wrong word of every command:
# exit code 2, and a message that names the flag, the file and the cause; and that nothing is printed for it.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
head -c 4000 /usr/share/common-licenses/GPL-3 >text.txt
cat >job.yaml <<'YAML'
model: {family: gpt2, layers: 4, hidden: 64, heads: 4, vocab: 256, seq: 32}
data: {train: text.txt}
train: {steps: 2}
pipeline: {stages: 2}
YAML
mkdir here.yaml here.csv here.json

# What is said before the file's name | file name's end | the command, with FILE where the name goes
table="
|yaml|plan FILE
|yaml|simulate FILE
|yaml|run FILE --local
|yaml|run FILE --local --check
--profile |json|plan job.yaml --profile FILE
--profile |json|simulate job.yaml --profile FILE
--profile |json|simulate job.yaml --profile FILE --replay
--profile |json|estimate --profile FILE --profile FILE
--predict |json|run job.yaml --local --predict FILE
|csv|schedule check FILE
--schedule |csv|schedule show --schedule FILE
--schedule |csv|schedule export --schedule FILE --to x.csv
--schedule |csv|schedule frontier --stages 2 --micro-batches 2 --schedule FILE
--block |yaml|schedule show --block FILE --micro-batches 4
--block |yaml|schedule export --block FILE --micro-batches 4 --to x.csv
|json|plot FILE --to x.svg
data.train: WORK/|txt|simulate job.yaml --set data.train=FILE
data.train: WORK/|txt|run job.yaml --local --set data.train=FILE
"
rows=0
while IFS='|' read -r before end words; do
  [ -n "$words" ] || continue
  rows=$((rows + 1))
  for file in "no.$end" "none/no.$end" "here.$end"; do
    [ "$file" != here.txt ] || continue
    cause="cannot open: No such file or directory"
    [ "$file" != "here.$end" ] || cause="not a regular file"
    # shellcheck disable=SC2086 # words are split
    refused 2 "ballastctl: ${before//WORK/$work}$file: $cause" "$ctl" ${words//FILE/$file}
    equal "output of $words" "" "$out"
  done
done <<<"$table"
equal "rows" 18 "$rows"
equal "files that were written" "here.csv here.json here.yaml job.yaml text.txt" "$(ls -I out -I err -I runtime | xargs)"
equal "left in the runtime folder" "" "$(ls "$XDG_RUNTIME_DIR")"
finish
