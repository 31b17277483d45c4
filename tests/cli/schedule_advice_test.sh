#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that ballastctl simulate says where plain 1f1b would be faster than a V-shaped schedule within the same memory:
# with the time that the job has when it is changed so; and that it says nothing where 1f1b is slower or takes more.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
head -c 20000 /usr/share/common-licenses/GPL-3 >text.txt
cat >job.yaml <<'YAML'
model: {family: gpt2, layers: 8, hidden: 1024, heads: 4, vocab: 256, seq: 1024}
data: {train: text.txt}
train: {steps: 2, micro_batches: 8}
pipeline: {stages: 4, schedule: adaptive}
YAML
on() { # gigabits per second, more words
  try "$ctl" simulate job.yaml --hardware a100-80g --nodes 4x1 --inter-gbps "$@" -o json
  equal "exit code of simulate $*: $err" 0 "$code"
  said=$(sed -n 's/^ *"\(pipeline.schedule: 1f1b .*\)"$/\1/p' <<<"$out")
}

for schedule in adaptive v-half v-zb zb-v; do
  on 1 --set pipeline.schedule=$schedule
  contains "warnings of $schedule on slow boundaries" "1f1b would take 0.4" "$said"
  contains "warnings of $schedule on slow boundaries" "with $schedule, within the memory of its fullest stage" "$said"
  equal "messages of $schedule on slow boundaries" "warning: $said" "$err"
  seconds=$(sed 's/.* 1f1b would take \([0-9.]*\) s .*/\1/' <<<"$said")
done
on 100000 # nothing to wait for
equal "warnings on fast boundaries" "" "$said$err"

# What is advised is what comes of it.
on 1 --set pipeline.chunks=2 --set memory.slots=8
contains "keys of the job" "set pipeline.schedule=1f1b, without pipeline.chunks, memory.slots" "$said"
on 1 --set pipeline.schedule=1f1b
contains "schedule" '"schedule": "1f1b"' "$out"
equal "seconds of 1f1b" "$seconds" "$(awk '/"step_seconds"/ { printf "%.4g", $2 }' <<<"$out")"
equal "warnings of 1f1b" "" "$said$err"

# 1f1b keeps as much as 8 of these blocks on stage 0.
for words in memory.slots=4 pipeline.schedule=v-min; do
  on 1 --set $words
  equal "warnings where 1f1b takes more memory, $words" "" "$said$err"
done
finish
