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
cat <<TEXT
A GPT is trained on text, one byte a token, cut into four pipeline stages. Each stage is a service of its own.
Loss is in nats per byte: guessing gives 5.55, knowing how often each pair of bytes comes gives 2.44.

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
