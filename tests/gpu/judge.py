# SPDX-License-Identifier: Apache-2.0
"""Holds what ballast-bench measured on a GPU against the figures that are promised, and names what is below.

    judge.py ops FILE       the lines of `ops --device`: every operation at least 85 % of a copy, AdamW among them
    judge.py path FILE      the lines of `path --device`: evict and load by cuda-ipc at least 90 % of a bare copy, and products
                            beside blocks at the pace of a stage at most 3 % slower
    judge.py pulled FILE    the lines of `gpu-paths ipc`: memory of another process copied at 90 % of a bare copy, from 16 MiB
    judge.py edges FILE     the lines of `gpu-paths edges`: tensors of another process pulled at 85 % of a bare copy, from 8 MiB
    judge.py copies FILE    the lines of `copies`: products beside copies to and from pinned memory of the host at the pace of a
                            stage at most 3 % slower
    judge.py stage FILE     the JSON lines of `stage --write`: products at least 80 % of the stage's time at b 1

Exit code 1 and the names where something is below or was not measured at all. Kernels inside of other operations, which only
CUPTI can time, are named and left out where there is none.
"""
import json
import re
import sys


def ops(text):
    found = {name.strip(): float(share) for name, share in
             re.findall(r"^(\S.*?) +[\d.]+ us +[\d.]+ GB/s +([\d.]+) % of a copy$", text, re.M)}
    for name, why in re.findall(r"^(\S.*?): none: (.*)$", text, re.M):
        print(f"--    {name}: nothing here can measure it: {why}")
    for name in ("adamw", "rms norm forward", "rms norm backward", "swiglu forward", "cross entropy"):
        found.setdefault(name, None)
    return [(name, share, 85.0, "% of a copy") for name, share in found.items()]


# Where copies take longer than a round they follow each other without a pause; one or two are no measurement.
def beside(text, words, what):
    found = re.findall(rf"^{words} overlap block_bytes=(\d+) flop_per_byte=([1-9]\d*) moved=(\d+) rounds=(\d+) "
                       r".*slowdown=(-?[\d.]+)", text, re.M)
    return [(f"products beside {what} of {size} bytes",
             100 * (1 - float(slowdown)) if int(moved) >= min(3, int(rounds)) else None, 97.0, "% of their rate alone")
            for size, _, moved, rounds, slowdown in found] or [(f"products beside {what}", None, 97.0, "% of their rate alone")]


def path(text):
    found = re.findall(r"^store cuda-ipc (evict|load) block_bytes=(\d+) .*share_of_bare_copy=([\d.]+)", text, re.M)
    missing = [(f"cuda-ipc {way}", None, 90.0, "% of a bare copy") for way in ("evict", "load")
               if way not in [row[0] for row in found]]
    return missing + [(f"cuda-ipc {way} of {size} bytes", 100 * float(share), 90.0, "% of a bare copy")
                      for way, size, share in found] + beside(text, "store cuda-ipc", "cuda-ipc blocks")


def copies(text):
    return beside(text, "copies", "copies")


def pulled(text):
    found = re.findall(r"^ *(\d+) MiB: pulled .*, (\d+) %$", text, re.M)
    return [(f"{size} MiB of another process", float(share), 90.0, "% of a bare copy")
            for size, share in found if int(size) >= 16] or [("memory of another process", None, 90.0, "% of a bare copy")]


def edges(text):
    found = re.findall(r"^ *(\d+) MiB a tensor: pulled .*, (\d+) %$", text, re.M)
    return [(f"tensors of {size} MiB of another process", float(share), 85.0, "% of a bare copy")
            for size, share in found if int(size) >= 8] or [("tensors of another process", None, 85.0, "% of a bare copy")]


def stage(text):
    rows = []
    for line in filter(None, text.splitlines()):
        run = json.loads(line)
        if run["micro_batch"] == 1:
            seconds = run["forward"] + run["input"] + run["weight"] + run["recomputed"]
            name = f"products of {run['model']}, {run['attention']}, recompute {run['recompute']}, b 1"
            rows.append((name, 100 * run["products"] / seconds, 80.0, "% of the stage's time"))
    return rows or [("products at b 1", None, 80.0, "% of the stage's time")]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("ops", "path", "pulled", "edges", "copies", "stage"):
        sys.exit(__doc__)
    with open(sys.argv[2], encoding="utf-8") as file:
        rows = {"ops": ops, "path": path, "pulled": pulled, "edges": edges, "copies": copies, "stage": stage}[sys.argv[1]](file.read())
    below = []
    for name, value, wanted, unit in rows:
        good = value is not None and value >= wanted
        below += [] if good else [name]
        print(f"{'ok   ' if good else 'BELOW'} {name}: {'not measured' if value is None else f'{value:.1f} {unit}'}"
              f", wanted {wanted:.0f}")
    if below:
        sys.exit("below what is promised: " + "; ".join(below))


main()
