#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that docs/configuration.md is what the table of keys says today.
. "$(dirname "$0")/common.sh"
try python3 -B "$root/tools/check/docs.py" "$bin" docs/configuration.md
equal "documentation: $err$out" 0 "$code"
try "$ctl" configuration
equal "exit code" 0 "$code"
contains "help" "train.micro_batches N" "$out"
finish
