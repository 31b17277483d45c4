#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies ballastctl plot: a report becomes an SVG or a PNG, empty lines and a half-written last one are left out, and what
# is no report is refused with file and line.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
for i in 1 2 3 4 5; do
  echo "{\"event\":\"step\",\"step\":$i,\"loss\":$((6 - i)).5}"
  [ $((i % 2)) = 1 ] || echo "{\"event\":\"validation\",\"step\":$i,\"loss\":$((7 - i)).25}"
done >report.jsonl
printf '{"event":"step","st' >>report.jsonl
try "$ctl" plot report.jsonl --to loss.svg
equal "exit code: $err" 0 "$code"
contains "picture" "<svg" "$(head -c 200 loss.svg)"
try "$ctl" plot report.jsonl --to loss.png
equal "exit code: $err" 0 "$code"
equal "kind of picture" "PNG" "$(head -c 4 loss.png | tail -c 3)"
mkdir gaps
{ head -3 report.jsonl; printf '\n \r\n'; tail -n +4 report.jsonl; } >gaps/report.jsonl
try "$ctl" plot gaps/report.jsonl --to gaps.svg
equal "exit code of a report with empty lines: $err" 0 "$code"
cmp -s gaps.svg loss.svg || fault "empty lines change the picture"
printf '{"event":"step","step":1,"loss":1}\n\nhello\n' >wrong.jsonl
refused 2 "wrong.jsonl:3: not a line of a report" "$ctl" plot wrong.jsonl --to wrong.svg
contains "what to do" "ballastctl run --report FILE writes one" "$err"
head -1 report.jsonl >one.jsonl
try "$ctl" plot one.jsonl --to one.svg
equal "exit code of one step: $err" 0 "$code"
: >empty.jsonl
refused 2 "--to loss.gif: the name must end in .svg or .png" "$ctl" plot report.jsonl --to loss.gif
refused 2 "there is no loss to draw" "$ctl" plot empty.jsonl --to loss.svg
printf '{"event":"step","step":1,"loss":1}\nhello\n' >wrong.jsonl
refused 2 "wrong.jsonl:2: not a line of a report" "$ctl" plot wrong.jsonl --to loss.svg
refused 2 "nothing.jsonl: cannot open" "$ctl" plot nothing.jsonl --to loss.svg
refused 2 "--to is missing; usage: ballastctl plot REPORT --to FILE.svg" "$ctl" plot report.jsonl
finish
