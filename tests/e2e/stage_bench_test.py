# SPDX-License-Identifier: Apache-2.0
"""ballast-bench ops --device and stage --model on the host and on the device that is not there (tests/late): the profile can be read, the
line of results names what took the time, longest first, by kernel where the device names them and by operation elsewhere."""
import json
import os
import subprocess

from ballast import BIN, ROOT, environment, scratch, skip

BUILD = os.path.dirname(os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin")).rstrip("/"))
LATE = os.path.join(BUILD, "tests", "late")


def bench(folder, device, *more):
    prefix = os.path.join(folder, device)
    done = subprocess.run([os.path.join(BIN, "ballast-bench"), "stage", "--hidden", "256", "--shard", "1", "--seq", "64",
                           "--layers", "2", "--micro-batches", "1,2", "--samples", "2", "--device", device, "--write",
                           prefix, *more], env=environment(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with open(f"{prefix}.jsonl") as file:
        lines = [json.loads(line) for line in file]
    assert [line["micro_batch"] for line in lines] == [1, 2], lines
    for size in (1, 2):
        with open(f"{prefix}-b{size}.json") as file:
            assert json.load(file), size
    return done.stdout, lines


def check(lines, by, expected):
    for line in lines:
        kernels = line["kernels"]
        assert line["kernels_by"] == by and 0 < len(kernels) <= 10, line
        seconds = [kernel["seconds"] for kernel in kernels]
        assert seconds == sorted(seconds, reverse=True), seconds
        assert sum(seconds) <= line["kernels_seconds"] * 1.000001, line
        assert all(abs(kernel["share"] - kernel["seconds"] / line["kernels_seconds"]) < 1e-3 for kernel in kernels), line
        calls = {kernel["name"]: kernel["calls"] for kernel in kernels}
        for name, count in expected.items():
            assert calls.get(name) == count, (name, calls)


def operations(folder, device):
    """Each operation beside a copy; the last line is the one that makes least of the memory."""
    done = subprocess.run([os.path.join(BIN, "ballast-bench"), "ops", "--device", device, "--hidden", "64", "--seq", "32",
                           "--micro-batch", "1", "--vocab", "100", "--samples", "1"], env=environment(folder),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    shares = {line[:24].strip(): float(line.split()[-5]) for line in lines[:-1]}
    assert {"rms norm backward", "adamw", "cross entropy", "rope", "embedding backward"} <= shares.keys(), lines
    least = min(shares, key=shares.get)
    assert lines[-1].startswith("least: ") and shares[lines[-1][7:].split(",")[0]] == shares[least], lines
    print(f"ok {len(shares)} operations on {device}")


def main():
    with scratch() as folder:
        operations(folder, "host")
        out, lines = bench(folder, "host", "--model", "gpt3-96b", "--recompute", "full")
        # Two layers of four products each; R makes three of them again, and the activations.
        check(lines, "operation", {"linear weight gradient": 8, "linear input gradient": 8})
        assert "the host has no kernels that it could name; by operation" in out, out
        refused = subprocess.run([os.path.join(BIN, "ballast-bench"), "stage", "--model", "gpt4"], capture_output=True,
                                 text=True, env=environment(folder), timeout=60)
        assert refused.returncode == 2 and "one of gpt3-96b" in refused.stderr, refused
        print("ok on the host")
        if not os.path.exists(os.path.join(LATE, "libballast-cuda.so")):
            skip("tests/late is not built")
        os.environ["BALLAST_MODULES"] = LATE
        operations(folder, "cuda")
        out, lines = bench(folder, "cuda", "--model", "llama-65b")
        check(lines, "kernel", {"linear_forward": 8, "linear_backward_weight": 8, "linear_backward_input": 8})
        assert "by operation" not in out and "kernels take " in out, out
        print("ok on a device that names its kernels")


main()
