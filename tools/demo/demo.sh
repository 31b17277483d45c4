#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains examples/demo.yaml on this machine and shows what came of it. ./ballast demo calls it after building.
#   demo.sh [--data FILE] [further arguments of ballastctl run]
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
ctl=$root/build/bin/ballastctl
results=$root/build/demo
shown=$(printf %q "$ctl") # as a shell wants it

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
long=("$ctl" run "$root/examples/demo.yaml" --local "${data[@]}" --summary --sample 200
  --timeline "$results/timeline.svg" --report "$results/report.jsonl" "$@")
"${long[@]}" --check # a mistake is told now, not after the short runs

# ---- first: what balancing is for, in short runs
steps=24
quiet=("$ctl" run "$root/examples/demo.yaml" --local "${data[@]}" --steps "$steps")
# variant NAME SETS...: one short run, its row of the table, its losses in NAME.losses
variant() {
  local name=$1 report=$results/$1.jsonl
  shift
  "${quiet[@]}" --report "$report" "$@" >"$results/$name.log" 2>&1 || { cat "$results/$name.log" >&2; return 1; }
  sed -n 's/^{"event":"step","step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$report" >"$results/$name.losses"
  [ "$(wc -l <"$results/$name.losses")" = "$steps" ] || { echo "ballast demo: $report lacks steps" >&2; return 1; }
  # The most slots that each device filled, its own and those it lent, and tokens per second
  # of the quicker steps, which say more on a machine that does other things.
  sed -n 's/.*"tokens":\([0-9]*\),"seconds":\([^,]*\),.*/\2 \1/p' "$report" | sort -g |
    awk 'NR == int('"$steps"' / 4) { print $2 / $1 }' >"$results/$name.rate"
  awk -v name="$name" -v rate="$(cat "$results/$name.rate")" -v unlimited="$(cat "$results/unlimited.rate")" '
    /"event":"step"/ {
      stages = $0; sub(/.*"stages":\[/, "", stages); stores = stages; sub(/\],"stores".*/, "", stages)
      sub(/.*"stores":\[/, "", stores)
      n = split(stages, own, /"peak_slots":/); split(stores, lent, /"lent_slots":/)
      for (i = 2; i <= n; i++) {
        most_own[i] = own[i] + 0 > most_own[i] ? own[i] + 0 : most_own[i] + 0
        most_lent[i] = lent[i] + 0 > most_lent[i] ? lent[i] + 0 : most_lent[i] + 0
      }
      loss = $0; sub(/.*"loss":/, "", loss); sub(/,.*/, "", loss)
    }
    END {
      for (i = 2; i <= n; i++) {
        slots = slots sprintf("%5s", most_own[i] (most_lent[i] > 0 ? "+" most_lent[i] : ""))
        fullest = most_own[i] + most_lent[i] > fullest ? most_own[i] + most_lent[i] : fullest
      }
      printf "  %-10s%s  %7d  %8.0f  %4.0f %%   %s\n", name, slots, fullest, rate, 100 * rate / unlimited, loss
    }' "$report"
  cmp -s "$results/unlimited.losses" "$results/$name.losses" ||
    { echo "ballast demo: the losses of $report and $results/unlimited.jsonl differ; they must not" >&2; return 1; }
}
cat <<TEXT
Four pipeline stages keep 4, 3, 2 and 1 activation blocks. Suppose every device has room for 3.

TEXT
echo "  plain 1F1B is refused:"
if "${quiet[@]}" --set memory.slots=3 --check 2>"$results/refused.log"; then
  echo "ballast demo: a budget of 3 slots was not refused" >&2
  exit 1
fi
sed 's/; /\n/g; s/^ballastctl: //' "$results/refused.log" | sed 's/^/    /'
printf '\n  %-10s%20s  %7s\n' "" "blocks on device   " "fullest"
printf '  %-10s%5s%5s%5s%5s  %7s  %8s  %6s   %s\n' "" 0 1 2 3 device tokens/s speed "loss of step $steps"
variant unlimited
variant recompute --set memory.slots=3 --set pipeline.recompute=full
variant bpipe --set memory.slots=3 --set balance.policy=bpipe
cat <<TEXT

  Every device must be bought as large as the fullest. recompute keeps little and runs every forward twice. bpipe parks
  blocks of device 0 at a store on device 3 while both compute: 1+2 is a block of its own and room lent for two. All
  $steps losses are equal to the bit. Speeds are those of the quickest quarter of the steps; they waver when this machine
  does other things.

TEXT

cat <<TEXT
Now a longer run. A GPT is trained on text, one byte a token, cut into four pipeline stages. Each stage is a service.
Loss is in nats per byte: guessing gives 5.55, knowing how often each pair of bytes comes gives 2.44.
While it runs, try in another terminal, in turn:

  $shown policy set bpipe      the first device gives up a slot, the last one lends two
  $shown stages                slots of each stage
  $shown dashboard             the address of a page that draws them
  $shown policy set none       and back

TEXT
"${long[@]}"

cat <<TEXT

timeline of the last step   $results/timeline.svg
one line per step           $results/report.jsonl

Try next:
  ./ballast run examples/demo.yaml --local --set pipeline.stages=2      the same losses, to the last bit
  ./ballast run examples/llama.yaml --local --summary                   another model, uneven stages
  build/bin/ballastctl schedule show --schedule 1f1b --stages 4 --micro-batches 8
TEXT
