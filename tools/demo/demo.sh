#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains examples/demo.yaml on this machine and shows what came of it. ./ballast demo calls it after building.
#   demo.sh [--data FILE] [further arguments of ballastctl run]
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
ctl=$root/build/bin/ballastctl
results=$root/build/demo

data=()
if [ "${1:-}" = --data ]; then
  [ $# -ge 2 ] || { echo "ballast demo: --data needs a FILE" >&2; exit 2; }
  [ -r "$2" ] || { echo "ballast demo: $2 cannot be read" >&2; exit 2; }
  data=(--set "data.train=$(readlink -f "$2")")
  shift 2
elif ! changed=$(sha256sum --check --quiet "$root/examples/demo.sha256" 2>&1); then
  sed 's/^/  /' <<<"$changed" >&2
  if grep -q 'open or read' <<<"$changed"; then
    echo "ballast demo: this text is missing; give your own with: ./ballast demo --data FILE" >&2
    exit 3
  fi
  echo "ballast demo: this text is another edition than the demo was made with; losses will differ a little" >&2
fi

mkdir -p "$results"

# ---- first: what balancing is for, in short runs
quiet=("$ctl" run "$root/examples/demo.yaml" --local "${data[@]}" --steps 8)
# variant NAME SETS...: one short run, its row of the table
variant() {
  local name=$1 report=$results/$1.jsonl
  shift
  "${quiet[@]}" --report "$report" "$@" >"$results/$name.log" 2>&1 || { cat "$results/$name.log" >&2; return 1; }
  # Slots that a device gives in all, own and lent, and tokens per second after the first two steps.
  awk -v name="$name" '
    /"event":"step"/ {
      stages = $0; sub(/.*"stages":\[/, "", stages); stores = stages; sub(/\],"stores".*/, "", stages)
      sub(/.*"stores":\[/, "", stores)
      n = split(stages, own, /"own_slots":/); split(stores, lent, /"lent_slots":/)
      slots = ""
      for (i = 2; i <= n; i++) slots = slots (i > 2 ? " " : "") (own[i] + 0) "+" (lent[i] + 0)
      seconds = $0; sub(/.*"seconds":/, "", seconds); tokens = $0; sub(/.*"tokens":/, "", tokens)
      if (++step > 2) { sum_tokens += tokens + 0; sum_seconds += seconds + 0 }
      loss = $0; sub(/.*"loss":/, "", loss); sub(/,.*/, "", loss)
    }
    END { printf "  %-12s %-18s %9.0f   %s\n", name, slots, sum_tokens / sum_seconds, loss }' "$report"
}
cat <<TEXT
Four pipeline stages keep 4, 3, 2 and 1 activation blocks. Suppose every device has room for 3.

TEXT
echo "  plain 1F1B is refused:"
if "${quiet[@]}" --set memory.slots=3 --check 2>"$results/refused.log"; then
  echo "ballast demo: a budget of 3 slots was not refused" >&2
  exit 1
fi
sed 's/^/    /' "$results/refused.log"
printf '\n  %-12s %-18s %9s   %s\n' "" "own+lent slots" "tokens/s" "loss of step 8"
variant unlimited
variant recompute --set memory.slots=3 --set pipeline.recompute=full
variant bpipe --set memory.slots=3 --set balance.policy=bpipe
cat <<TEXT

  bpipe parks blocks of the first device at a store on the last one, while it computes. The losses are equal to the bit.

TEXT

cat <<TEXT
Now a longer run. A GPT is trained on text, one byte a token, cut into four pipeline stages. Each stage is a service.
Loss is in nats per byte: guessing gives 5.55, knowing how often each pair of bytes comes gives 2.44.
While it runs, try in another terminal:  build/bin/ballastctl policy set bpipe     and back:  ... policy set none

TEXT
"$ctl" run "$root/examples/demo.yaml" --local "${data[@]}" --summary --sample 200 \
  --timeline "$results/timeline.svg" --report "$results/report.jsonl" "$@"

cat <<TEXT

timeline of the last step   $results/timeline.svg
one line per step           $results/report.jsonl

Try next:
  ./ballast run examples/demo.yaml --local --set pipeline.stages=2      the same losses, to the last bit
  ./ballast run examples/llama.yaml --local --summary                   another model, uneven stages
  build/bin/ballastctl schedule show --schedule 1f1b --stages 4 --micro-batches 8
TEXT
