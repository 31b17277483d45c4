# SPDX-License-Identifier: Apache-2.0
"""ballast-bench ops --device and stage --model on the host and on the device that is not there (tests/late): the gains that
are printed are those that ballastctl estimate has from the profiles, utilisation is relative to one rate, a block is the
published formula less what is named; the line of results names what took the time, longest first, by kernel where the
device names them and by operation elsewhere."""
import json
import os
import re
import subprocess

from ballast import BIN, LATE, environment, scratch, skip

WIDTHS = {"gpt3-96b": "192", "llama-65b": "256"}  # two heads


def estimate(folder, first, second):
    """For the 32 GPUs of the papers: 8 stages of 4 GPUs, 128 sequences a step."""
    done = subprocess.run([os.path.join(BIN, "ballastctl"), "estimate", "--profile", first, "--profile", second, "--stages",
                           "8", "--batch", "128", "-o", "json"], env=environment(folder), capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def utilisation(lines):
    """Of one rate, the best that the products had: what a micro-batch gains is what its sequences per second gain."""
    peak = max(line["products_rate"] for line in lines)
    assert all(line["peak"] == peak for line in lines), lines
    rates = [line["mfu"] * (line["forward"] + line["input"] + line["weight"] + line["recomputed"]) / line["micro_batch"]
             for line in lines]
    assert all(abs(rate / rates[0] - 1) < 1e-4 for rate in rates), rates


def again_counts(folder):
    """R is part of a stage's time where every block is made again and an R was seen, and nowhere else."""
    for recompute, seen, efficiency in (("full", True, 2 * 4 / 6), ("full", False, 2), ("none", True, 2)):
        paths = []
        for size, again in ((1, 1), (2, 3)):
            with open(os.path.join(folder, f"host-b{size}.json")) as file:
                profile = json.load(file)
            profile["recompute"] = recompute
            profile["chunks"][0].update({"F": 1, "I": 1, "W": 1, "R": again, "measured_R": seen})
            paths.append(os.path.join(folder, f"made-b{size}.json"))
            with open(paths[-1], "w") as file:
                json.dump(profile, file)
        said = estimate(folder, *paths)
        assert abs(said["efficiency"] - efficiency) < 1e-9, (recompute, seen, said)
    print("ok R in the estimate")


def blocks(lines, published):
    for line in lines:
        block = line["block_units"]
        assert abs(block["published"] - published) < 1e-6, (block, published)
        assert abs(block["difference"]) < 5e-3 and abs(block["kept"] - block["expected"] - block["difference"]) < 1e-6, block
        assert 0 < block["kept"] < published, block


def bench(folder, device, model, *more, shard="1"):
    prefix = os.path.join(folder, device)
    done = subprocess.run([os.path.join(BIN, "ballast-bench"), "stage", "--model", model, "--hidden", WIDTHS[model], "--shard",
                           shard, "--seq", "64", "--layers", "2", "--micro-batches", "1,2", "--samples", "2", "--device",
                           device, "--write", prefix, *more], env=environment(folder), capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    with open(f"{prefix}.jsonl") as file:
        lines = [json.loads(line) for line in file]
    assert [line["micro_batch"] for line in lines] == [1, 2], lines
    gains = re.findall(r"^b 1 to 2: at most ([\d.]+) times .*\(efficiency ([\d.]+), needed ([\d.]+)\)$", done.stdout,
                       re.M)
    assert len(gains) == 1, done.stdout
    said = estimate(folder, f"{prefix}-b1.json", f"{prefix}-b2.json")
    assert (said["from"], said["to"], said["batch"], said["stages"]) == (1, 2, 128, 8), said
    for printed, key in zip(gains[0], ("speedup", "efficiency", "break_even")):
        assert abs(float(printed) - said[key]) < 6e-4, (gains, said)
    utilisation(lines)
    return done.stdout, lines


def head(lines, columns):
    """Layers and head of a GPT of two heads of 96: 72 h^2 for each token and layer, the full square of attention, 6 h v."""
    for line in lines:
        assert line["head"] == columns, line
        useful = line["mfu"] * line["peak"] * (line["forward"] + line["input"] + line["weight"])
        rows, hidden = 64 * line["micro_batch"], 192
        counted = rows * (2 * (72 * hidden * hidden + 12 * 64 * hidden) + 6 * hidden * columns)
        assert abs(useful / counted - 1) < 1e-3, (useful, counted)


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
    lines = [line for line in done.stdout.splitlines()[1:] if ": none: " not in line]  # kernels that only CUPTI can time
    shares = {line[:24].strip(): float(line.split()[-5]) for line in lines[:-1]}
    assert {"rms norm backward", "adamw", "cross entropy", "rope", "embedding backward"} <= shares.keys(), lines
    least = min(shares, key=shares.get)
    assert lines[-1].startswith("least: ") and shares[lines[-1][7:].split(",")[0]] == shares[least], lines
    print(f"ok {len(shares)} operations on {device}")


def main():
    with scratch() as folder:
        operations(folder, "host")
        out, lines = bench(folder, "host", "gpt3-96b", "--recompute", "full")
        again_counts(folder)
        # 34 s b h bytes in units of 2 s b h: 9984 shrunk to two heads of 96.
        blocks(lines, 34 / 2)
        # Two layers of four products each; R makes three of them again, and the activations.
        check(lines, "operation", {"linear weight gradient": 8, "linear input gradient": 8})
        assert "the host has no kernels that it could name; by operation" in out, out
        # s b h (10 + 24 / t) + 5 a s^2 b / t at t = 2
        blocks(bench(folder, "host", "gpt3-96b", "--attention", "naive", shard="2")[1],
               (10 + 24 / 2 + 5 * 2 * 64 / 192 / 2) / 2)
        blocks(bench(folder, "host", "gpt3-96b", "--attention", "naive", "--recompute", "attention")[1], 34 / 2)
        # The last stage: one piece of logits, and its products beside those of the layers
        out, lines = bench(folder, "host", "gpt3-96b", "--head")
        assert "2 layers, head of 50257 columns, seq 64" in out, out
        head(lines, 50257)
        check(lines, "operation", {"linear weight gradient": 9, "linear input gradient": 9, "cross entropy": 1})
        out, lines = bench(folder, "host", "llama-65b", "--head", shard="2")
        assert all(line["head"] == 16000 for line in lines), lines
        refused = subprocess.run([os.path.join(BIN, "ballast-bench"), "stage", "--model", "gpt4"], capture_output=True,
                                 text=True, env=environment(folder), timeout=60)
        assert refused.returncode == 2 and "one of gpt3-96b" in refused.stderr, refused
        print("ok on the host")
        if not os.path.exists(os.path.join(LATE, "libballast-cuda.so")):
            skip("tests/late is not built")
        os.environ["BALLAST_MODULES"] = LATE
        operations(folder, "cuda")
        out, lines = bench(folder, "cuda", "llama-65b")
        check(lines, "kernel", {"linear_forward": 8, "linear_backward_weight": 8, "linear_backward_input": 8})
        assert "by operation" not in out and "kernels take " in out, out
        check(bench(folder, "cuda", "gpt3-96b", "--head")[1], "kernel",
              {"linear_forward": 9, "linear_backward_weight": 9, "linear_backward_input": 9, "cross_entropy": 1})
        print("ok on a device that names its kernels")


main()
