#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far the policy auto is from the best of its alternatives: none, bpipe and full recomputation, in five settings.

    tools/bench/auto.py [--hidden 512] [--seq 128] [--rounds 5] [--steps 16] [--only NAME]

fast       six stages, one slot fewer than the schedule needs, the path as it is
throttled  the same with a path on which a block takes two F
tight      the smallest budget that can be balanced
loose      as many slots as the schedule needs
small      as fast, with a quarter of the tokens in a block

In each round every alternative that fits the budget runs once, in an order that turns from round to round; the median of its
last steps counts (those after auto has decided). The best is the alternative whose median over rounds is the least (the least
of each round would be a different one by chance each time, and auto could not reach it even if it did the same), and printed
is the median over rounds of every quotient to it. Losses must be equal to the bit. Full recomputation is another job; a run
under auto makes blocks again one by one (the policy drop), within the same slots.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
STAGES = 6
SLOTS = STAGES - 1
TIGHT = (STAGES + 3) // 2
COUNTED = 6  # steps, from the end


def write_job(folder, options):
    text = os.path.join(folder, "text")
    with open(text, "wb") as file:
        file.write(open("/usr/share/common-licenses/GPL-3", "rb").read() * 4)
    job = os.path.join(folder, "job.yaml")
    with open(job, "w") as file:
        json.dump({
            "model": {"family": "gpt2", "layers": STAGES, "hidden": options.hidden, "heads": options.hidden // 64,
                      "vocab": 256, "seq": options.seq},
            "data": {"train": text, "format": "text"},
            "train": {"steps": options.steps, "micro_batch": 1, "micro_batches": 16, "lr": 1e-4},
            "pipeline": {"stages": STAGES, "schedule": "1f1b", "threads": 1},
        }, file)
    return job


def run(folder, job, sets):
    report = os.path.join(folder, "report.jsonl")
    if os.path.exists(report):
        os.remove(report)
    arguments = [argument for pair in sets for argument in ("--set", pair)]
    subprocess.run([os.path.join(BIN, "ballastctl"), "run", job, "--local", "--report", report, *arguments], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(report) as file:
        return [event for event in map(json.loads, file) if event["event"] == "step"]


def seconds(events):
    return statistics.median(event["seconds"] for event in events[-COUNTED:])


def rate_of_two_forwards(folder, job):
    """Bytes per second at which a block of the first stage takes two F, F being a third of what it computes."""
    events = run(folder, job, [])
    stage = events[-1]["stages"][0]
    forward = statistics.median(event["stages"][0]["busy_seconds"] for event in events[-COUNTED:]) / 16 / 3
    return int(stage["peak_slot_bytes"] / stage["peak_slots"] / (2 * forward))


def settings(folder, job, options):
    yield "fast", [f"memory.slots={SLOTS}"], True
    yield "tight", [f"memory.slots={TIGHT}"], True
    yield "loose", [f"memory.slots={STAGES}"], False
    yield "small", [f"memory.slots={SLOTS}", f"model.seq={options.seq // 4}"], True
    rate = rate_of_two_forwards(folder, job) if options.only in (None, "throttled") else 1
    yield "throttled", [f"memory.slots={SLOTS}", f"balance.rate={rate}"], True


def compare(folder, job, sets, limited, rounds):
    """Median quotients to the best, by alternative."""
    alternatives = {"auto": ["balance.policy=auto"], "bpipe": ["balance.policy=bpipe", f"balance.cap={SLOTS}"],
                    "recompute": ["pipeline.recompute=full"]}
    if not limited:
        alternatives["none"] = []
    taken, losses = {name: [] for name in alternatives}, set()
    for number in range(rounds):
        for name in sorted(alternatives, reverse=number % 2 == 1):
            events = run(folder, job, sets + alternatives[name])
            losses.add(tuple(event["loss"].hex() for event in events))
            taken[name].append(seconds(events))
    assert len(losses) == 1, "losses differ"
    best = min((name for name in taken if name != "auto"), key=lambda name: statistics.median(taken[name]))
    return {name: statistics.median(own / other for own, other in zip(values, taken[best])) for name, values in taken.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["fast", "throttled", "tight", "loose", "small"])
    options = parser.parse_args()
    if options.steps < COUNTED + 8:
        parser.error(f"--steps: at least {COUNTED + 8}, so that auto has decided before steps count")
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        job = write_job(folder, options)
        for name, sets, limited in settings(folder, job, options):
            if options.only not in (None, name):
                continue
            found = compare(folder, job, sets, limited, options.rounds)
            print(f"{name:10} " + ", ".join(f"{key} {value:.3f}x" for key, value in found.items()) + " the best's step")


main()
