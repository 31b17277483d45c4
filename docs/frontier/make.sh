#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the tables and plots of this folder again: docs/frontier/make.sh [build/bin]
set -eu
bin=$(realpath "${1:-build/bin}")
cd "$(dirname "$0")"
# make MICRO-BATCHES NAME COST: 8 stages, a path that takes a forward's time for a device's whole block
make() {
  "$bin/ballastctl" schedule frontier --stages 8 --micro-batches "$1" --cost "$3" --path-cost 20 --effort 0.05 \
    --plot "$2.svg" >"$2.csv"
}
make 16 p8-m16-slow-boundaries 20,28,12,30
make 16 p8-m16 20,28,12,4
make 8 p8-m8 20,28,12,4
