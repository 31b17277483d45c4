#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much faster a stage is in bf16 than in fp32, on one thread.

    tools/bench/bf16.py [flags] [-- more flags of ballast-bench stage]

Runs `ballast-bench stage` in both types by turns and prints the median ratio of their shares of the fp32 matmul ceiling:
each run measures that ceiling beside its own operations, so the ratio is free of what the machine does meanwhile.
"""
import re
import statistics
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402


def share(dtype, options):
    said = measuring.bench("stage", "--prepack", "--dtype", dtype, "--hidden", str(options.hidden), "--pairs", "1",
                           *options.more)
    return float(re.search(r"share of the ceiling ([0-9.]+) %", said)[1]), said.splitlines()[0]


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--hidden", type=measuring.heads, default=768, metavar="N", help="of the model (default 768)")
    measuring.add_rounds(flags, 7, "--pairs")
    flags.add_argument("more", nargs="*", metavar="FLAG", help="after --: passed on to ballast-bench stage")
    options = flags.parse_args()
    ratios, shares = [], {"fp32": [], "bf16": []}
    for number in range(options.rounds):
        for dtype, list_of in shares.items():
            value, what = share(dtype, options)
            list_of.append(value)
        ratios.append(shares["bf16"][-1] / shares["fp32"][-1])
        tell(f"round {number + 1} of {options.rounds}: bf16 over fp32 {ratios[-1]:.2f}x")
    print(what)
    print(f"bf16 over fp32: {statistics.median(ratios):.2f}x (from {min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds); "
          f"share of the fp32 ceiling: fp32 {statistics.median(shares['fp32']):.1f} %, bf16 {statistics.median(shares['bf16']):.1f} %")


main()
