#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that docs/configuration.md is what the table of keys says today.
. "$(dirname "$0")/common.sh"
"$ctl" configuration --markdown >"$work/configuration.md"
diff -u "$root/docs/configuration.md" "$work/configuration.md" ||
  fault "docs/configuration.md is out of date: ballastctl configuration --markdown > docs/configuration.md"
try "$ctl" configuration
equal "exit code" 0 "$code"
contains "help" "train.micro_batches N" "$out"
finish
