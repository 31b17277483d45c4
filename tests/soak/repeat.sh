#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command a number of times and ends with its first failure.
#   repeat.sh ROUNDS COMMAND...
rounds=$1
shift
for round in $(seq "$rounds"); do
  echo "round $round of $rounds"
  "$@" || exit
done
