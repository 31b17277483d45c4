#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that the script that holds the maps of the tree against it finds what is not so.
#   map_test.sh SOURCE_FOLDER
set -euo pipefail
script=$1/tools/check/map.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lib/base" "$work/lib/step" "$work/lib/loop" "$work/docs" "$work/tools/check"

write() { # what the page names, pure libraries, others
  printf 'See `%s`, `lib/loop`, `*_wire.[ch]`, `uv.h`.\n' "$1" >"$work/docs/architecture.md"
  {
    printf '## Pure\n\n| library | what |\n| --- | --- |\n'
    printf '| `%s` | x |\n' $2
    printf '\n## On the system\n\n| library | what |\n| --- | --- |\n'
    printf '| `%s` | x |\n' $3
  } >"$work/lib/README.md"
}

finds() { # text
  local output
  output=$("$script" "$work") && { echo "not found: $1"; exit 1; }
  [[ $output == *"$1"* ]] || { echo "unexpected: $output, wanted: $1"; exit 1; }
}

echo '  pure = "step"' >"$work/tools/check/includes.awk"
touch "$work/lib/base/error.h"
write lib/base/error.h 'base step' loop
"$script" "$work"
write lib/base/errors.h 'base step' loop
finds 'docs/architecture.md: lib/base/errors.h is not there'
write lib/base/error.h 'base step' 'loop rpc'
finds 'not as the folders of lib are: rpc'
write lib/base/error.h 'base' loop
finds 'not as the folders of lib are: step'
write lib/base/error.h 'base step loop' loop
finds 'twice: loop'
write lib/base/error.h 'base loop' step
finds 'Pure is not what'
echo "map: ok"
