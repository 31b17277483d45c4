#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What run.sh decides on a machine without a GPU, and with one: by the program that really asks, and by two that only
# answer. Where there is none every part ends with 77 and the reason, and nothing is built.
set -euo pipefail
script=$(cd "$(dirname "$0")" && pwd)/run.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

answers() { # what run.sh says, in $work/out; its exit code
  local code=0
  "$script" "$@" >"$work/out" 2>&1 || code=$?
  echo $code
}
expect() { # wanted code, code, what
  [ "$1" = "$2" ] || { echo "$3: ended with $2, not $1:" && cat "$work/out" && exit 1; }
}
pretend() { # exit code, words
  mkdir -p "$work/bin"
  printf '#!/bin/sh\necho "%s"\nexit %d\n' "$2" "$1" >"$work/bin/stage-service"
  chmod +x "$work/bin/stage-service"
}

asked=0
reason=$("$BALLAST_BIN/stage-service" --list-devices 2>&1) || asked=77
expect "$asked" "$(answers device)" "asked here"
[ $asked = 0 ] || grep -qF "SKIPPED: $reason" "$work/out" || { echo "no reason:" && cat "$work/out" && exit 1; }

export BALLAST_BIN=$work/bin
pretend 3 "no driver"
for parts in device quick claims 1 2 "1 2"; do
  expect 77 "$(answers "$parts")" "no GPU, $parts"
  [ "$(cat "$work/out")" = "SKIPPED: no driver" ] || { echo "no GPU, $parts:" && cat "$work/out" && exit 1; }
done
expect 2 "$(answers clams)" "a part that is none"
grep -q "'clams' is no part: quick, claims," "$work/out" || { echo "a part that is none:" && cat "$work/out" && exit 1; }
# A check has a limit, one that hangs is a failure with a name, and what there is no time for is skipped with it.
for seconds in 20 1; do
  code=0
  (cd "$work" && source_run=$(sed -n '/^seconds_left()/,/^# What is right or wrong/p' "$script") && mkdir -p build-gpu/logs &&
    bash -c "passed=0 failed=0 skipped=0 ends=() limit=3 BALLAST_RUN_SECONDS=$seconds; $source_run
      check hangs sleep 60; check works true; printf '%s\n' \"\${ends[@]}\"; exit \$failed") >"$work/out" 2>&1 || code=$?
  if [ $seconds = 20 ]; then
    expect 1 $code "a check that hangs"
    grep -q "^hangs: FAILED: not over after 3 s" "$work/out" || { echo "no limit:" && cat "$work/out" && exit 1; }
    grep -q "^works: ok" "$work/out" || { echo "hidden by another:" && cat "$work/out" && exit 1; }
  else
    expect 0 $code "no time left"
    grep -q "^works: SKIPPED: no time left" "$work/out" || { echo "no time left:" && cat "$work/out" && exit 1; }
  fi
done
pretend 0 "one GPU"
expect 0 "$(answers device)" "a GPU"
echo "ok"
