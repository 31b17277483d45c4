#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains examples/demo.yaml on this machine and shows what came of it. ./ballast demo calls it after building.
#   demo.sh [--data FILE] [further arguments of ballastctl run]
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
ctl=$root/build/bin/ballastctl
results=$root/build/demo
shown=$(printf %q "$ctl") # as a shell wants it

case ${1:-} in
--help | -h)
  cat <<'TEXT'
usage: ./ballast demo [--data FILE] [further arguments of ballastctl run]

Shows what balancing is for in four short runs, then trains a small GPT on text (or on FILE) in four stages, and leaves
pictures and reports in build/demo.
TEXT
  exit 0
  ;;
esac
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
long=("$ctl" run "$root/examples/demo.yaml" --local "${data[@]}" --set train.steps=220 --summary --sample 120
  --timeline "$results/timeline.svg" --report "$results/report.jsonl" "$@")
"${long[@]}" --check >/dev/null # a mistake is told now, not after the short runs

# ---- first: what balancing is for, in short runs
steps=${BALLAST_DEMO_STEPS:-16}
quiet=("$ctl" run "$root/examples/demo.yaml" --local "${data[@]}" --steps "$steps")
reports=()
variant() { # NAME WHAT SETS...: one short run, reported in NAME.jsonl
  printf '  %-12s%s\n' "$1" "$2"
  reports+=("$results/$1.jsonl")
  "${quiet[@]}" --report "$results/$1.jsonl" "${@:3}" >"$results/$1.log" 2>&1 || { cat "$results/$1.log" >&2; return 1; }
}
cat <<TEXT
Four pipeline stages keep 4, 3, 2 and 1 activation blocks. Suppose every device has room for 3.

  plain 1F1B is refused:
TEXT
if "${quiet[@]}" --set memory.slots=3 --check 2>"$results/refused.log"; then
  echo "ballast demo: a budget of 3 slots was not refused" >&2
  exit 1
fi
sed 's/; /\n/g; s/^ballastctl: //' "$results/refused.log" | sed 's/^/    /'
printf '\n%s steps each:\n' "$steps"
variant unlimited "1F1B, as if there were room"
variant recompute "3 blocks: every forward runs twice" --set memory.slots=3 --set pipeline.recompute=full
variant bpipe "3 blocks: device 0 parks blocks at a store on device 3 while both compute" --set memory.slots=3 \
  --set balance.policy=bpipe
echo
"$ctl" compare "${reports[@]}" --equal
cat <<TEXT

Every device must be bought as large as the fullest. 1+2 is a block of its own and room lent for two. All $steps losses are
equal to the bit. Speeds waver when this machine does other things.

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

What balancing did to the memory, from the short runs:

TEXT
"$ctl" compare "$results/unlimited.jsonl" "$results/bpipe.jsonl" --bars --to "$results/memory.svg"
cat <<TEXT

the same as a picture       $results/memory.svg
timeline of the last step   $results/timeline.svg
one line per step           $results/report.jsonl

Try next:
  ./ballast run examples/demo.yaml --local --set pipeline.stages=2      the same losses, to the last bit
  ./ballast run examples/llama.yaml --local --summary                   another model, uneven stages
  build/bin/ballastctl schedule show --schedule 1f1b --stages 4 --micro-batches 8
TEXT
