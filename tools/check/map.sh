#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Are the maps of the tree true? docs/architecture.md names files that exist, and lib/README.md has every library once, the
# pure ones as tools/check/includes.awk has them. Prints what is not so and ends with 1.
#   map.sh [ROOT]
set -uo pipefail
cd "${1:-$(dirname "$0")/../..}" || exit 1
faults=0

wrong() {
  echo "$1"
  faults=1
}

# Names in backticks that are paths; those with patterns are not looked at.
for page in docs/architecture.md lib/README.md; do
  for path in $(grep -oE '`[A-Za-z0-9_./-]+`' "$page" | tr -d '`' | sort -u); do
    case $path in
    lib/* | tools/* | tests/* | proto/* | docs/* | stage-service/* | activation-store/* | *.py | *.sh)
      [ -e "$path" ] || wrong "$page: $path is not there"
      ;;
    esac
  done
done

rows() { # of a section of lib/README.md
  awk -v section="## $1" '/^## / { here = $0 == section } here && /^\| `/ { gsub(/`/, "", $2); print $2 }' lib/README.md
}

listed=$(rows Pure; rows 'On the system')
there=$(find lib -mindepth 1 -maxdepth 1 -type d -printf '%f\n')
differing=$(sort <(echo "$listed") <(echo "$there") | uniq -u)
[ -z "$differing" ] || wrong "lib/README.md: not as the folders of lib are: "$differing
doubled=$(echo "$listed" | sort | uniq -d)
[ -z "$doubled" ] || wrong "lib/README.md: twice: $doubled"
pure=$(sed -n 's/^  pure = "\(.*\)"$/\1/p' tools/check/includes.awk | tr ' ' '\n'; echo base)
[ "$(sort <<<"$pure")" = "$(rows Pure | sort)" ] || wrong "lib/README.md: Pure is not what tools/check/includes.awk calls pure"
exit $faults
