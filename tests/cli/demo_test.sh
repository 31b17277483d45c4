#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies the demo on a text of one's own, with a long run of three steps: it shows the refused budget and the same losses
# of all short runs (of four steps), ends with the bars of both, and leaves the pictures that it names.
. "$(dirname "$0")/common.sh"
if ! [ "$ctl" -ef "$root/build/bin/ballastctl" ]; then # the one that the demo takes
  echo "skipped: the demo takes build/bin, this is another build"
  exit 77
fi
try "$root/tools/demo/demo.sh" --help
equal "exit code of --help" 0 "$code"
contains "its usage" "demo [--data FILE]" "$out"
cat "$root"/docs/*.md | head -c 300000 >"$work/text"
rm -f "$root/build/demo/memory.svg" "$root/build/demo/timeline.svg"
try env BALLAST_DEMO_STEPS=4 "$root/tools/demo/demo.sh" --data "$work/text" --steps 3
equal "exit code: $err" 0 "$code"
contains "the refused budget" "needs one slot more than the 3 available" "$out"
contains "runs with balancing" "3  3  2  1+2  " "$out"
contains "the last picture" "device 0    ################         ############
device 1    ############             ############
device 2    ########                 ########
device 3    ####                     ####++++++++
needs       4 blocks a device        3 blocks a device" "$out"
equal "steps of the long run" 3 "$(grep -c '"event":"step"' "$root/build/demo/report.jsonl")"
for picture in memory timeline; do
  contains "$picture.svg" "</svg>" "$(cat "$root/build/demo/$picture.svg")"
done
finish
