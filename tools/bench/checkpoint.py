#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs: the stop of training beside one thread's memcpy, and writing beside dd with fsync.

    tools/bench/checkpoint.py [--hidden 768] [--layers 6] [--pairs 5] [--folder .]

By turns, in the same folder: `dd conv=fsync` of as many bytes as a stage writes, and a stage's writer with its
checksums and fsync. Printed are medians of the pairs' ratios.
"""
import argparse
import os
import re
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin")), "ballast-bench")


def bench(options, *more):
    done = subprocess.run([BENCH, "checkpoint", "--hidden", str(options.hidden), "--layers", str(options.layers), *more],
                          check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def dd(folder, size):
    path = os.path.join(folder, f"ballast-dd-{os.getpid()}")
    try:
        start = time.monotonic()
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=8M", f"count={size}", "iflag=count_bytes", "conv=fsync",
                        "status=none"], check=True)
        return size / (time.monotonic() - start) * 1e-6
    finally:
        if os.path.exists(path):
            os.unlink(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    print(bench(options, "--pairs", "15").splitlines()[0])
    ratios, ours, theirs = [], [], []
    for _ in range(options.pairs):
        output = bench(options, "--pairs", "1", "--writes", "1", "--folder", options.folder)
        size, rate = re.search(r"written (\d+) bytes in .*: ([0-9.]+) MB/s", output).groups()
        ours.append(float(rate))
        theirs.append(dd(options.folder, int(size)))
        ratios.append(ours[-1] / theirs[-1])
    print(f"writing {int(size) / 1e6:.0f} MB: {statistics.median(ours):.0f} MB/s, dd with fsync "
          f"{statistics.median(theirs):.0f} MB/s: {100 * statistics.median(ratios):.0f} % of dd "
          f"(from {100 * min(ratios):.0f} to {100 * max(ratios):.0f} %, {len(ratios)} pairs)")


main()
