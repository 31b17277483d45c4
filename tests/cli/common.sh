# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of the programs: a private work folder, checks that print both sides.
#   . "$(dirname "$0")/common.sh"       with $1 sources, $2 binaries
set -uo pipefail
root=$1
bin=$2
ctl=$bin/ballastctl
work=$(mktemp -d /tmp/ballast-test-XXXXXX)
export XDG_RUNTIME_DIR=$work/runtime
mkdir -m 0700 "$XDG_RUNTIME_DIR"
faults=0

cleanup() {
  rm -rf "$work"
}
trap cleanup EXIT

fault() {
  printf 'FAULT: %s\n' "$*" >&2
  faults=$((faults + 1))
}

skip() {
  printf 'skipped: %s\n' "$*" >&2
  exit 77
}

equal() { # what, expected, actual
  [ "$2" = "$3" ] || fault "$1: expected '$2', got '$3'"
}

contains() { # what, part, text
  case $3 in
  *"$2"*) ;;
  *) fault "$1: expected '...$2...', got '$3'" ;;
  esac
}

# Runs a command; its exit code in $code, its output in $out and $err.
try() {
  "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
  out=$(cat "$work/out")
  err=$(cat "$work/err")
}

refused() { # exit code, part of the message, command...
  local expected=$1 part=$2
  shift 2
  try "$@"
  equal "exit code of $*" "$expected" "$code"
  contains "message of $*" "$part" "$err"
}

finish() {
  [ "$faults" = 0 ] || exit 1
  echo ok
}
