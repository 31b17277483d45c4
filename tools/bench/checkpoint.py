#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs: the stop of training beside one thread's memcpy, and writing beside dd with fsync.

By turns, in the same folder: `dd conv=fsync` of as many bytes as a stage writes, and a stage's writer with its
checksums and fsync. Printed are medians over rounds of their ratio.
"""
import os
import re
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402


def bench(options, *more):
    return measuring.bench("checkpoint", "--hidden", str(options.hidden), "--layers", str(options.layers), *more)


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
    flags = measuring.parser(__doc__)
    flags.add_argument("--hidden", type=measuring.heads, default=768, metavar="N", help="of the model (default 768)")
    flags.add_argument("--layers", type=measuring.count(1), default=6, metavar="N", help="of the model (default 6)")
    measuring.add_rounds(flags, 5, "--pairs")
    flags.add_argument("--folder", default=".", help="to write in (default .)")
    options = flags.parse_args()
    if not os.access(options.folder, os.W_OK | os.X_OK) or not os.path.isdir(options.folder):
        flags.error(f"--folder {options.folder}: is no folder that can be written to")
    print(bench(options, "--pairs", "15").splitlines()[0])
    ratios, ours, theirs = [], [], []
    for number in range(options.rounds):
        output = bench(options, "--pairs", "1", "--writes", "1", "--folder", options.folder)
        size, rate = re.search(r"written (\d+) bytes in .*: ([0-9.]+) MB/s", output).groups()
        ours.append(float(rate))
        theirs.append(dd(options.folder, int(size)))
        ratios.append(ours[-1] / theirs[-1])
        tell(f"round {number + 1} of {options.rounds}: {ours[-1]:.0f} MB/s, dd {theirs[-1]:.0f} MB/s")
    print(f"writing {int(size) / 1e6:.0f} MB: {statistics.median(ours):.0f} MB/s, dd with fsync "
          f"{statistics.median(theirs):.0f} MB/s: {100 * statistics.median(ratios):.0f} % of dd "
          f"(from {100 * min(ratios):.0f} to {100 * max(ratios):.0f} %, {len(ratios)} rounds)")


main()
