#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Format, include rules, circles of calls, maps of the tree, licence lines, the page of headers and clang-tidy over the tree.
#   check.sh [--quick | --changed]
# --quick leaves out clang-tidy, which takes minutes. --changed is clang-tidy alone, of what differs from origin/main, or from
# the commit before where nothing does. Exit code 77: what it needs is not here, and the last line says what.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
what=${1:-}
faults=0
case $what in
"" | --quick | --changed) ;;
*)
  echo "usage: ./ballast check [--quick | --changed]" >&2
  [ "$what" = --help ] || [ "$what" = -h ]
  exit $(($? * 2))
  ;;
esac

absent() {
  echo "check: skipped: $*"
  exit 77
}
git rev-parse --verify -q HEAD >/dev/null || absent "no git, or no repository"

sources() {
  git ls-files --cached --others --exclude-standard -- "$@"
}

step() { # name, command...
  local name=$1
  shift
  if "$@"; then
    echo "check: $name: ok"
  else
    echo "check: $name: FAILED"
    faults=$((faults + 1))
  fi
}

format() {
  sources '*.c' '*.h' | xargs clang-format --dry-run --Werror
}

includes() {
  sources '*.c' '*.h' '*.cu' | xargs awk -f tools/check/includes.awk
}

circles() {
  python3 tools/check/circles.py >/dev/null
}

licences() {
  local missing
  missing=$(sources '*.c' '*.h' '*.cu' '*.proto' '*.sh' '*.py' '*.cmake' '*CMakeLists.txt' '*.awk' ballast |
    xargs grep -L 'SPDX-License-Identifier: Apache-2.0')
  [ -z "$missing" ] || { echo "no SPDX line in: $missing"; return 1; }
}

# gcc knows warnings and parameters that clang does not, and a flag that clang refuses.
tidy_of() { # files at standard input, further arguments
  local made
  mkdir -p build/tidy
  made=$(mktemp build/tidy/made.XXXXXX)
  sed 's/ -fno-thread-jumps//' build/compile_commands.json >"$made" && mv "$made" build/tidy/compile_commands.json
  xargs -r -P "$(nproc)" -n 4 clang-tidy --quiet -p build/tidy --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-unused-command-line-argument "$@" 2> >(grep -v 'warnings generated' >&2)
}

# Those that define what analyzer.h is about are looked at as they are, and programs that see installed headers alone.
tidy() { # files...
  local files defining='^(lib/(base/(error|status)|config/job)|examples/.*)\.c$' failed=0
  files=$(printf '%s\n' "$@" | grep -v -e '^tests/' -e '/cuda/')
  sed -nE "\\:$defining:p" <<<"$files" | tidy_of || failed=1
  sed -E "\\:$defining:d" <<<"$files" | tidy_of --extra-arg=-include --extra-arg="$PWD/tools/check/analyzer.h" || failed=1
  return $failed
}

tidy_changed() {
  local base most=40 files
  base=$(git merge-base HEAD origin/main 2>/dev/null)
  if [ -z "$base" ] || git diff --quiet "$base"; then
    base=$(git rev-parse --verify -q HEAD~1) || absent "nothing to compare with"
  fi
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- '*.c' | grep -v -e '^tests/' -e '/cuda/')
  [ "${#files[@]}" -le $most ] || absent "${#files[@]} files have changed, more than $most: ./ballast check looks at them"
  [ "${#files[@]}" = 0 ] || tidy "${files[@]}"
}

if [ "$what" = --changed ]; then
  command -v clang-tidy >/dev/null || absent "no clang-tidy"
  step "clang-tidy of what has changed" tidy_changed
  exit $((faults > 0))
fi
command -v clang-format >/dev/null || absent "no clang-format"
step "format (clang-format)" format
step "include rules" includes
step "circles" circles
step "maps of the tree" tools/check/map.sh
step "licence lines" licences
step "docs/api.md" tools/check/api.py
if [ "$what" != --quick ]; then
  mapfile -t files < <(sources '*.c')
  step "clang-tidy" tidy "${files[@]}"
fi
exit $((faults > 0))
