#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much faster a stage is in bf16 than in fp32, on one thread.

    tools/bench/bf16.py [--hidden 768] [--pairs 7] [-- more flags of ballast-bench stage]

Runs `ballast-bench stage` in both types by turns and prints the median ratio of their shares of the fp32 matmul ceiling:
each run measures that ceiling beside its own operations, so the ratio is free of what the machine does meanwhile.
"""
import argparse
import os
import re
import statistics
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin")), "ballast-bench")


def share(dtype, options):
    done = subprocess.run([BENCH, "stage", "--prepack", "--dtype", dtype, "--hidden", str(options.hidden), "--pairs", "1",
                           *options.more], check=True, stdout=subprocess.PIPE, text=True)
    return float(re.search(r"share of the ceiling ([0-9.]+) %", done.stdout)[1]), done.stdout.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("more", nargs="*")
    options = parser.parse_args()
    ratios, shares = [], {"fp32": [], "bf16": []}
    for _ in range(options.pairs):
        for dtype, list_of in shares.items():
            value, what = share(dtype, options)
            list_of.append(value)
        ratios.append(shares["bf16"][-1] / shares["fp32"][-1])
    print(what)
    print(f"bf16 over fp32: {statistics.median(ratios):.2f}x (from {min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} pairs); "
          f"share of the fp32 ceiling: fp32 {statistics.median(shares['fp32']):.1f} %, bf16 {statistics.median(shares['bf16']):.1f} %")


main()
