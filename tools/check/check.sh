#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Format, include rules, circles of calls, licence lines and clang-tidy over the tree.
#   check.sh [--quick]      --quick leaves out clang-tidy, which takes minutes
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
quick=${1:-}
faults=0

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

# gcc knows warnings and parameters that clang does not.
tidy_of() { # files at standard input, further arguments
  xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-unused-command-line-argument "$@" 2> >(grep -v 'warnings generated' >&2)
}

# Those that define what analyzer.h is about are looked at as they are.
tidy() {
  local files defining='^lib/(base/(error|status)|config/job)\.c$' failed=0
  files=$(sources '*.c' | grep -v '^tests/' | grep -v '/cuda/')
  grep -E "$defining" <<<"$files" | tidy_of || failed=1
  grep -Ev "$defining" <<<"$files" | tidy_of --extra-arg=-include --extra-arg="$PWD/tools/check/analyzer.h" || failed=1
  return $failed
}

step "format (clang-format)" format
step "include rules" includes
step "circles" circles
step "licence lines" licences
[ "$quick" = --quick ] || step "clang-tidy" tidy
exit $((faults > 0))
