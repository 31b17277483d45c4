#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies what plan and simulate make of a device's model: tensor ranks use the link that --intra-gbps gives, the
# written job is for the device whose costs were planned with, memory has the dtype of the times, what Ballast's stages
# keep is said beside what a cluster counts, and what does not fit into the device is said too.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
head -c 20000 /usr/share/common-licenses/GPL-3 >text.txt
cat >job.yaml <<'YAML'
model: {family: llama, layers: 8, hidden: 1024, heads: 16, kv_heads: 16, ffn: 4096, vocab: 256, seq: 1024}
data: {train: text.txt}
train: {steps: 2, micro_batches: 8}
YAML

number() { # key: the first number of that name in JSON
  sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" <<<"$out" | head -1
}

# times a b factor: whether a is more than b times factor
times() {
  awk -v a="$1" -v b="$2" -v f="$3" 'BEGIN { exit !(a > f * b) }'
}

# On slow links most of a layer's time is that of its collectives; on fast ones little.
for gbps in 100 3600; do
  try "$ctl" plan job.yaml --nodes 1x8 --hardware h100 --tensor 4 --stages 2 --schedule 1f1b --intra-gbps $gbps \
    --micro-batch 1 --slices 1 --attention flash --sequence --write planned-$gbps.yaml -o json
  equal "exit code of plan: $err" 0 "$code"
  planned[gbps]=$(number step_seconds)
  try "$ctl" simulate planned-$gbps.yaml --nodes 1x8 --hardware h100 --intra-gbps $gbps -o json
  equal "exit code of simulate: $err" 0 "$code"
  simulated[gbps]=$(number step_seconds)
done
times "${planned[100]}" "${planned[3600]}" 4 || fault "planned on slow links ${planned[100]} s, on fast ones ${planned[3600]} s"
times "${simulated[100]}" "${simulated[3600]}" 4 ||
  fault "simulated on slow links ${simulated[100]} s, on fast ones ${simulated[3600]} s"
equal "costs of two rates that are the same" "" "$(comm -12 <(grep costs.forward planned-100.yaml) <(grep costs.forward planned-3600.yaml))"

# Replicas of one node share its links to the others, at the rate that is given.
set_data=(--set parallel.data=2 --set pipeline.stages=1)
for gbps in 1 100; do
  try "$ctl" simulate job.yaml "${set_data[@]}" --nodes 2x1 --hardware h100 --inter-gbps $gbps -o json
  simulated[gbps]=$(number step_seconds)
done
times "${simulated[1]}" "${simulated[100]}" 4 ||
  fault "replicas on slow cards take ${simulated[1]} s, on fast ones ${simulated[100]} s"
# The written job is one of GPUs in mixed precision; simulate counts its memory so, and that of the fp32 job.
planned_on() { # more words
  try "$ctl" plan job.yaml --nodes 1x8 --hardware h100 --tensor 2 --stages 2 --schedule 1f1b --micro-batch 1 --slices 1 \
    --attention flash --sequence --shard --write planned.yaml -o json "$@"
  equal "exit code of plan $*: $err" 0 "$code"
}
planned_on
equal "the written job" "  dtype: bf16;  device: cuda" "$(grep -E ' (dtype|device):' planned.yaml | paste -sd ';')"
own=$(sed -n '/"own_stages"/,/}/s/^ *"memory_bytes": \([0-9.]*\).*/\1/p' <<<"$out")
contains "own stages" '"fits": true' "$(sed -n '/"own_stages"/,/}/p' <<<"$out")"
equal "warnings of a plan that fits" "" "$(grep warning <<<"$err")"
largest() {
  sed -n 's/^ *"memory_bytes": \([0-9.]*\).*/\1/p' <<<"$out" | sort -n | tail -1
}
for set in train.steps=2 train.dtype=fp32; do # on a cluster both are in mixed precision
  try "$ctl" simulate planned.yaml --set $set --nodes 1x8 --hardware h100 -o json
  equal "exit code of simulate: $err" 0 "$code"
  contains "dtype of $set" '"dtype": "bf16"' "$(grep '"dtype"' <<<"$out")"
  equal "memory of the written job with $set" "$own" "$(largest)"
done
try "$ctl" run planned.yaml --local --check
[ "$code" = 0 ] || contains "what --check lacks here" "pipeline.device" "$err"

# What replicas receive is not counted on a cluster, and is said where it does not fit.
limit=$(awk -v own="$own" 'BEGIN { printf "%d", 0.999 * own }')
planned_on --memory "$limit"
contains "own stages" '"fits": false' "$(sed -n '/"own_stages"/,/}/p' <<<"$out")"
contains "warnings of a plan that does not" "the job of the best candidate takes" "$err"
contains "warnings of a plan that does not" "the job of the best candidate takes" "$(sed -n '/"warnings"/,/]/p' <<<"$out")"

# A device that is named has the memory of its data sheet.
large=(--set model.layers=64 --set model.hidden=8192 --set model.ffn=32768 --set pipeline.stages=1)
try "$ctl" simulate job.yaml "${large[@]}" --hardware h100 -o json
contains "warning of a stage that is too large" "of the 74.5 GiB of h100 68.5 GiB are usable" "$err"
contains "warning of a stage that is too large" "of the 74.5 GiB of h100 68.5 GiB are usable" \
  "$(sed -n '/"warnings"/,/]/p' <<<"$out")"
try "$ctl" simulate job.yaml --hardware h100 -o json
equal "warnings of one that fits" "" "$err"
refused 8 "nothing fits into 68.5 GiB a device" "$ctl" plan job.yaml "${large[@]}" --hardware h100 --schedule 1f1b \
  --micro-batch 1 --slices 1
finish
