#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Verifies what Python programs say where a package is not installed: one line that names it and how to install it.
. "$(dirname "$0")/common.sh"
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
bare="python3 -S" # without what is installed beside Python

line() { # part of the message, command...
  refused 1 "$@"
  equal "lines of ${*:2}" 1 "$(wc -l <"$work/err")"
}

for command in demo "tokens --help" ""; do
  # shellcheck disable=SC2086 # words are split
  line "needs the package torch, which is not there: pip install torch" $bare -m ballast_torch $command
done
refused 1 "ImportError: ballast_torch needs the package torch, which is not there" $bare -c "import ballast_torch"
line "the package tokenizers is not there: pip install torch transformers tokenizers" $bare "$root/examples/tiny_model.py" \
  "$work/model" text.txt
line "torch_park.py: the package torch is not there: pip install torch" $bare "$root/tools/bench/torch_park.py"
finish
