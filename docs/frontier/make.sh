#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the tables and plots of this folder again: docs/frontier/make.sh [build/bin]
set -eu
bin=$(realpath "${1:-build/bin}")
cd "$(dirname "$0")"
# make NAME COST EFFORT: 8 stages, 16 micro-batches, a path that takes a forward's time for a device's whole block
make() {
  "$bin/ballastctl" schedule frontier --stages 8 --micro-batches 16 --cost "$2" --path-cost 20 --effort "$3" \
    --plot "$1.svg" >"$1.csv"
}
make p8-m16-slow-boundaries 20,28,12,30 0.1
make p8-m16 20,28,12,4 0.2
