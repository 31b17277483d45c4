#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What balancing costs and what it saves: the same job with unlimited slots, with bpipe, and with full recomputation at
bpipe's budget, by turns.

    tools/bench/balance.py [--hidden 768] [--seq 256] [--rounds 10] [--steps 6]
    tools/bench/balance.py --throttle          the path slowed down so that a block takes half an F

Four stages of one thread: the smallest pipeline in which bpipe moves anything (its cap is ceil((p + 2) / 2)). In each
round every variant runs once, and the median of its steps, the first two left out, counts; printed are the medians over
rounds of the quotients within a round. With --throttle the variants are unlimited slots, bpipe, and bpipe on the slowed
path; stalls are what the stages that evict waited for longer than without the limit, as a share of the step. F is taken as
a third of what a stage computes per micro-batch. Losses of all variants must be equal to the bit.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
STAGES = 4
CAP = (STAGES + 3) // 2


def write_job(folder, options):
    text = os.path.join(folder, "text")
    with open(text, "wb") as file:
        file.write(open("/usr/share/common-licenses/GPL-3", "rb").read() * 4)
    job = os.path.join(folder, "job.yaml")
    with open(job, "w") as file:
        json.dump({
            "model": {"family": "gpt2", "layers": options.layers, "hidden": options.hidden,
                      "heads": options.hidden // 64, "vocab": 256, "seq": options.seq},
            "data": {"train": text, "format": "text"},
            "train": {"steps": options.steps, "micro_batch": 1, "micro_batches": options.micro_batches, "lr": 1e-4},
            "pipeline": {"stages": STAGES, "schedule": "1f1b", "threads": 1},
        }, file)
    return job


def run(folder, job, sets):
    report = os.path.join(folder, "report.jsonl")
    arguments = [argument for pair in sets for argument in ("--set", pair)]
    subprocess.run([os.path.join(BIN, "ballastctl"), "run", job, "--local", "--report", report, *arguments], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(report) as file:
        return [event for event in map(json.loads, file) if event["event"] == "step"]


def seconds(events):
    return statistics.median(event["seconds"] for event in events[2:])


def stall_share(events):
    """Of the first stage, which evicts most."""
    return statistics.median(event["stages"][0]["stall_seconds"] / event["seconds"] for event in events[2:])


def half_an_f(events, micro_batches):
    """Bytes per second at which a block of the first stage takes half an F."""
    stage = events[-1]["stages"][0]
    block_bytes = stage["peak_slot_bytes"] / stage["peak_slots"]
    f_seconds = statistics.median(e["stages"][0]["busy_seconds"] for e in events[2:]) / micro_batches / 3
    return int(block_bytes / (f_seconds / 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--throttle", action="store_true")
    options = parser.parse_args()
    bpipe = ["balance.policy=bpipe", f"memory.slots={CAP}"]
    variants = {"unlimited": [], "bpipe": bpipe}
    quotients, losses, stalls = {}, set(), []
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        job = write_job(folder, options)
        if options.throttle:
            rate = half_an_f(run(folder, job, bpipe), options.micro_batches)
            variants["slowed"] = bpipe + [f"balance.rate={rate}"]
        else:
            variants["recompute"] = ["pipeline.recompute=full", f"memory.slots={CAP}"]
        for _ in range(options.rounds):
            found = {name: run(folder, job, sets) for name, sets in variants.items()}
            losses.update(tuple(event["loss"].hex() for event in events) for events in found.values())
            for name, events in found.items():
                quotients.setdefault(name, []).append(seconds(events) / seconds(found["unlimited"]))
            stalls.append(stall_share(found[list(variants)[-1]]) - stall_share(found["bpipe"]))
            last = seconds(found["unlimited"])
    assert len(losses) == 1, "losses differ"
    print(f"{STAGES} stages, hidden {options.hidden}, {options.layers} layers, seq {options.seq}, "
          f"m {options.micro_batches}, {options.rounds} rounds, step of unlimited slots {last:.3f} s, equal losses")
    for name, values in quotients.items():
        print(f"  {name:10} {statistics.median(values):.3f}x the step of unlimited slots "
              f"({min(values):.3f} to {max(values):.3f})")
    if options.throttle:
        print(f"  path {rate / 1e6:.0f} MB/s: further stalls of stage 0 {100 * statistics.median(stalls):.2f} % of the step")
    else:
        gain = [a / b for a, b in zip(quotients["recompute"], quotients["bpipe"])]
        print(f"  tokens/s of bpipe over full recomputation {statistics.median(gain):.3f}x "
              f"({min(gain):.3f} to {max(gain):.3f})")


main()
