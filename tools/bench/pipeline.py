#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of what 1F1B's own bubble allows two one-thread stages on two cores reach, whole services included.

    tools/bench/pipeline.py [--steps 12] [--hidden 768] [--path shm] [--repeat 3]
    tools/bench/pipeline.py --ahead [--stages 2] [--steps 20] [--repeat 5]

Runs `ballastctl run --local` and reads its report. A stage's busy seconds are its operations alone, so for m
micro-batches the fastest step that 1F1B on two stages can make is

    bound = max(busy_0 + busy_1 / m, busy_1 + busy_0 / m)

(the other stage's F before the first operation and B after the last one). Printed is bound / measured, the median over
steps, the first two left out; `seconds` is from the start of a step to its commit, optimizer and protocol included.

--ahead compares the same runs with train.post_validation (docs/post-validation.md) and without, in turns, for schedules
whose stages end together and such whose stages do not; the model's head is its own, so that the ends of the pipeline do
not wait for each other. Printed is the median quotient of the mean step.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(options, folder, number, *sets):
    report = os.path.join(folder, f"report-{number}.jsonl")
    job = os.path.join(folder, "job.yaml")
    text = os.path.join(folder, "text")
    with open(text, "wb") as file:
        file.write(open("/usr/share/common-licenses/GPL-3", "rb").read() * 4)
    with open(job, "w") as file:
        json.dump({
            "model": {"family": "gpt2", "layers": options.layers, "hidden": options.hidden,
                      "heads": options.hidden // 64, "vocab": 256, "seq": options.seq},
            "data": {"train": text, "format": "text"},
            "train": {"steps": options.steps, "micro_batch": options.micro_batch, "micro_batches": options.micro_batches,
                      "lr": 1e-4},
            "pipeline": {"stages": options.stages, "schedule": "1f1b", "attention": "flash", "threads": 1},
            "balance": {"data_path": options.path},
        }, file)
    binaries = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
    arguments = [argument for pair in sets for argument in ("--set", pair)]
    subprocess.run([os.path.join(binaries, "ballastctl"), "run", job, "--local", "--report", report, *arguments], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(report) as file:
        return [json.loads(line) for line in file][2:]


def compare_ahead(options, folder):
    for schedule in ("1f1b", "zb-h1", "zb-h2", "zb-v"):
        quotients, number = [], 0
        for _ in range(options.repeat):
            means, losses = [], []
            for ahead in ("false", "true"):
                number += 1
                steps = run(options, folder, f"{schedule}-{number}", f"pipeline.schedule={schedule}", "model.tied=false",
                            f"train.post_validation={ahead}")
                means.append(statistics.mean(event["seconds"] for event in steps))
                losses.append([event["loss"].hex() for event in steps])
            assert losses[0] == losses[1], "losses differ"
            quotients.append(means[1] / means[0])
        print(f"{schedule:6} on {options.stages} stages, hidden {options.hidden}: a step ahead of its commit takes "
              f"{statistics.median(quotients):.3f} of one that waits ({min(quotients):.3f} to {max(quotients):.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--path", default="shm")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--stages", type=int, default=2, help="with --ahead")
    parser.add_argument("--ahead", action="store_true")
    options = parser.parse_args()
    if options.ahead:
        with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
            compare_ahead(options, folder)
        return
    options.stages = 2
    m = options.micro_batches
    shares, medians = [], []
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        for number in range(options.repeat):
            for event in run(options, folder, number):
                busy = [stage["busy_seconds"] for stage in event["stages"]]
                bound = max(busy[0] + busy[1] / m, busy[1] + busy[0] / m)
                shares.append(bound / event["seconds"])
                medians.append(event["seconds"])
    print(f"two stages, hidden {options.hidden}, {options.layers} layers, m {m}, {options.path}: "
          f"step {statistics.median(medians):.3f} s, {100 * statistics.median(shares):.1f} % of 1F1B's bound "
          f"(best {100 * max(shares):.1f} %, worst {100 * min(shares):.1f} %, {len(shares)} steps)")


main()
