# SPDX-License-Identifier: Apache-2.0
"""judge.py holds figures against what is promised: lines as ballast-bench prints them, good ones, one that is too low, one
that is not there; and what the programs print today (on the host) can be read."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(HERE, "..", "..", "build", "bin")), "ballast-bench")
OPERATIONS = ("adamw", "adamw, packed", "rms norm forward", "rms norm backward", "swiglu forward", "cross entropy")


def judge(kind, text, expect, *words):
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "judge.py"), kind, file.name], capture_output=True,
                              text=True, timeout=60)
    assert done.returncode == expect, f"{kind}: {done.returncode}\n{done.stdout}{done.stderr}"
    for word in words:
        assert word in done.stderr, f"{kind}: no {word} in {done.stderr}"
    assert expect == 0 or done.stderr.startswith("below what is promised: "), done.stderr
    return done.stdout


def operations(**shares):
    lines = [f"{name:<24} {12.5:10.1f} us {3000.0:8.1f} GB/s {shares.get(name, 91.0):6.1f} % of a copy" for name in OPERATIONS]
    return "\n".join(["hidden 8192, 8192 tokens, bf16; a GPU", *lines, "least: adamw, 91.0 % of a copy"]) + "\n"


def blocks(evict, load, name="cuda-ipc"):
    return "".join(f"store {name} {way} block_bytes=16777216 checksums=no gb_s=1800.00 share_of_bare_copy={share:.3f} pairs=15\n"
                   for way, share in (("evict", evict), ("load", load)))


def overlap(slowdown, moved=20, pace=4600, name="cuda-ipc"):
    return (f"store {name} overlap block_bytes=67108864 flop_per_byte={pace} moved={moved} rounds=20 products_tflop_s=700.1 "
            f"slowdown={slowdown:.4f} pairs=15\n")


def stage(products, size=1, **more):
    return json.dumps({"model": "llama-65b", "attention": "flash", "recompute": "none", "micro_batch": size, "forward": 1.0,
                       "input": 1.0, "weight": 1.0, "recomputed": 0, "products": products, "update": 1.0, **more}) + "\n"


def main():
    judge("ops", operations(), 0)
    judge("ops", operations(adamw=84.9), 1, "adamw")
    assert "BELOW swiglu" in judge("ops", operations(**{"swiglu forward": 12.0}), 1, "swiglu forward")
    judge("ops", operations().replace("adamw ", "other "), 1, "adamw")
    judge("ops", "ballast-bench ops: no device\n", 1, "cross entropy")
    judge("path", blocks(0.95, 0.9) + overlap(0.029), 0)
    judge("path", blocks(0.95, 0.9) + blocks(0.1, 0.1, "tcp") + overlap(-0.001) + overlap(0.3, pace=0) +
          overlap(0.5, name="nccl"), 0)
    judge("path", blocks(0.89, 0.95) + overlap(0.01), 1, "cuda-ipc evict of 16777216 bytes")
    judge("path", blocks(0.95, 0.95), 1, "products beside cuda-ipc blocks")
    judge("path", blocks(0.95, 0.95) + overlap(0.031), 1, "products beside cuda-ipc blocks of 67108864 bytes")
    judge("path", blocks(0.95, 0.95) + overlap(0.01, moved=2), 1, "products beside cuda-ipc blocks of 67108864 bytes")
    judge("pulled", "   4 MiB: pulled    900.0 GB/s, bare 2000.0 GB/s, 45 %\n  64 MiB: pulled 1350.0 GB/s, bare 1400.0 GB/s, 96 %\n", 0)
    judge("pulled", "  64 MiB: pulled 1200.0 GB/s, bare 1400.0 GB/s, 86 %\n", 1, "64 MiB of another process")
    judge("pulled", "SKIPPED: no driver\n", 1, "memory of another process")
    tensor = "{:4} MiB a tensor: pulled  900.0 GB/s, both ways at once  700.0 GB/s each, bare 1000.0 GB/s, {} %\n"
    judge("edges", tensor.format(1, 40) + tensor.format(8, 90) + tensor.format(32, 97), 0)
    judge("edges", tensor.format(8, 84) + tensor.format(32, 97), 1, "tensors of 8 MiB of another process")
    judge("edges", "SKIPPED: no driver\n", 1, "tensors of another process")
    judge("path", "store cuda-ipc: none: no driver\n" + blocks(1, 1, "shm"), 1, "cuda-ipc evict; cuda-ipc load")
    judge("copies", overlap(0.029, name="host").replace("store host", "copies"), 0)
    judge("copies", overlap(0.031, name="host").replace("store host", "copies"), 1, "products beside copies of 67108864 bytes")
    judge("copies", "copies out block_bytes=1 gb_s=50.0\n", 1, "products beside copies")
    judge("stage", stage(2.41), 0)
    judge("stage", stage(2.41) + stage(0.1, 2), 0)
    judge("stage", stage(2.39), 1, "products of llama-65b")
    judge("stage", stage(2.41, recomputed=1.0), 1, "products of llama-65b")
    judge("stage", stage(2.9, 2), 1, "products at b 1")
    measured = subprocess.run([BENCH, "ops", "--device", "host", "--hidden", "64", "--seq", "32", "--micro-batch", "1",
                               "--vocab", "100", "--samples", "1"], capture_output=True, text=True, timeout=300, check=True)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(measured.stdout)
        file.flush()
        told = subprocess.run([sys.executable, "-B", os.path.join(HERE, "judge.py"), "ops", file.name], capture_output=True,
                              text=True, timeout=60)
    assert told.returncode in (0, 1) and "not measured" not in told.stdout, told.stdout + told.stderr
    assert len(told.stdout.splitlines()) == len(measured.stdout.splitlines()) - 2, told.stdout + measured.stdout
    print("ok")


main()
