#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies that a build without services can be configured: whatever it builds, its tests too, depends on nothing that it
# leaves out.
#   pure_test.sh SOURCE_FOLDER CMAKE
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" -S "$1" -B "$work" -DBALLAST_SERVICES=OFF -DBALLAST_CUDA=OFF >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
