#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies ballastctl compare: blocks, bytes, speed and losses of reports are those of their lines, bars and pictures show them,
# what a host lends is on no device, impossible counts are refused, and --equal finds the first loss that differs and a
# run that is shorter.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
stage() { # number, blocks: of 1 MiB
  printf '{"stage":%d,"own_slots":4,"peak_slots":%d,"peak_slot_bytes":%d}' "$1" "$2" $(($2 * 1048576))
}
# report NAME SECONDS LENT OF-STAGE-0...: a step each
report() {
  local name=$1 seconds=$2 lent=$3 step=0
  shift 3
  for own; do
    step=$((step + 1))
    printf '{"event":"step","step":%d,"loss":%d.10000000000000001,"tokens":1000,"seconds":%s,"stages":[%s,%s],"stores":[%s]}\n' \
      $step $((9 - step)) "$seconds" "$(stage 0 "$own")" "$(stage 1 1)" \
      "$([ "$lent" = 0 ] || echo "{\"store\":1,\"device\":1,\"lent_slots\":$lent,\"peak_leased\":$lent}, {\"store\":2,\"host\":0,\"lent_slots\":9}")"
  done >"$name.jsonl"
}
report plain 0.5 0 3 4 4 3
report parked 1 2 2 2 2 2

try "$ctl" compare plain.jsonl parked.jsonl --equal
equal "exit code: $err" 0 "$code"
equal "rows" "plain 4 4 1 4 4.00MiB 2000 100 5.0999999999999996
parked 4 2 1+2 3 3.00MiB 1000 50 5.0999999999999996" "$(tail -n +2 <<<"$out" | sed 's/ MiB/MiB/; s/  */ /g')"
try "$ctl" compare plain.jsonl parked.jsonl -o json
equal "devices" '[{"own":2,"lent":0,"bytes":2097152},{"own":1,"lent":2,"bytes":3145728}]' \
  "$(python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)[1]["devices"], separators=(",", ":")))' <<<"$out")"
try "$ctl" compare plain.jsonl parked.jsonl --bars --to memory.svg
contains "bars" "device 0    ################         ########
device 1    ####                     ####++++++++
needs       4 blocks a device        3 blocks a device" "$out"
contains "picture" "<svg" "$(head -c 200 memory.svg)"

sed '3s/"loss":6/"loss":7/' plain.jsonl >other.jsonl
refused 9 "other.jsonl: step 3 has loss 7.0999999999999996; in plain.jsonl step 3 has 6.0999999999999996" \
  "$ctl" compare plain.jsonl other.jsonl --equal
head -3 plain.jsonl >short.jsonl
refused 9 "short.jsonl has 3 steps, plain.jsonl has 4" "$ctl" compare plain.jsonl short.jsonl --equal
try "$ctl" compare plain.jsonl other.jsonl -o wide
equal "exit code without --equal" 0 "$code"
contains "what is seen then" "no  " "$out"
: >empty.jsonl
refused 2 "empty.jsonl: there is no step in it yet" "$ctl" compare plain.jsonl empty.jsonl
echo '{"event":"step","step":1,"loss":1}' >bare.jsonl
refused 2 "bare.jsonl:1: a step of 0 stages" "$ctl" compare bare.jsonl
sed 's/"peak_slots":3/"peak_slots":4294967295/' plain.jsonl >many.jsonl
refused 2 "many.jsonl:1: peak_slots: 4294967295 blocks, at most 16777216" "$ctl" compare many.jsonl
sed '2s/"lent_slots":2/"lent_slots":4294967295/' parked.jsonl >lent.jsonl
refused 2 "lent.jsonl:2: lent_slots: 4294967295 blocks, at most 16777216" "$ctl" compare lent.jsonl
refused 2 "--to memory.gif: the name must end in .svg or .png" "$ctl" compare plain.jsonl --to memory.gif
finish
