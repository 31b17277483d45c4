#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that the script that looks for circles of calls finds them, however they hide, and nothing else.
#   circles_test.sh SOURCE_FOLDER
set -euo pipefail
script=$1/tools/check/circles.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lib/a" "$work/lib/b"

calls() { # file, what it defines, what it calls
  printf 'static int number;\n\nint %s(int a,\n  int b) {\n  return %s(a);\n}\n' "$2" "$3" >"$work/lib/$1"
}

wants() { # what the script is to print, as a pattern; and whether it is to find a fault
  local output fault=no
  output=$(python3 "$script" "$work" 2>&1) || fault=yes
  [[ $output == $1 && $fault == "$2" ]] || { echo "wanted: $1, fault: $2; printed: $output, fault: $fault"; exit 1; }
}

calls a/one.c bl_one bl_two
calls a/two.c bl_two bl_three
calls a/three.c bl__three bl_four
calls b/four.c bl_four bl_one
wants '' no # bl_three is nobody's

calls a/three.c bl_three bl_four
wants '*4 lib: a/one.c a/three.c a/two.c b/four.c*circles of more than 3 files: see above' yes

printf 'int bl_four(int a) {\n  // bl_one(a) is not called\n  return a ? "bl_one(a)"[0] : 0;\n}\n' >"$work/lib/b/four.c"
wants '' no
calls a/three.c bl_three bl_one # three are allowed
wants '*3 lib/a: one.c three.c two.c' no
calls b/four.c bl_four bl_one
calls b/one.c bl_one bl_four # defined twice: the seam is nobody's
wants '' no
echo "circles: ok"
