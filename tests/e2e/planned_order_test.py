# SPDX-License-Identifier: Apache-2.0
"""What was planned is what runs, operation for operation: the order that `ballastctl plan` finds with uneven costs is the one
that the written job simulates and that its stages execute, as a trace of a real step says; without the written costs it
would be another one; losses are bit for bit those of 1f1b whatever the order. One process of a run searches: what the driver
is given is what its stages run, and it refuses what is no order of its job."""
import json
import os
import signal
import subprocess

import ballast

STAGES, BATCH = 2, 6


def ctl(folder, *arguments, expect=0):
    done = subprocess.run([ballast.CTL, *arguments], env=ballast.environment(folder), text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def simulated(folder, job, *arguments):
    return json.loads(ctl(folder, "simulate", job, "-o", "json", *arguments))


def plan(folder, job, path, *arguments):
    return json.loads(ctl(folder, "plan", job, "--micro-batch", "1", "--attention", "naive", "--write", path, "-o", "json", *arguments))["best"]


def executed(document):
    """Computing operations of every stage, in the order of their starts."""
    spans = [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] == "operation"]
    cells = [[e["name"] for e in sorted(spans, key=lambda e: e["ts"]) if e["pid"] == stage] for stage in range(STAGES)]
    return [computing(row) for row in cells]


def computing(row):
    return [cell for cell in row if not set(cell) & set("EL")]


def check_planned(folder, job):
    """All that is searched, with a head that makes the last stage slow; parked and made again, too."""
    differ = 0
    others = ("1f1b-v", "grouped-interleaved") if ballast.LONG else ()
    for schedule in ("zb-h1", "v-half", *others, "adaptive", "1f1b"):
        path = os.path.join(folder, f"{schedule}.yaml")
        best = plan(folder, job, path, "--schedule", schedule)
        assert simulated(folder, path)["order"] == best["order"], schedule
        without = [word for kind in ("forward", "input", "weight", "recompute", "boundary")
                   for word in ("--set", f"pipeline.costs.{kind}=null")]
        differ += simulated(folder, path, *without)["order"] != best["order"]
        print("ok", schedule)
    assert differ >= 2, differ


def check_moved(folder):
    """What is parked or made again is part of the order."""
    job = ballast.write_job(folder, name="tight.yaml", model=ballast.small_inline(layers=4, seq=128),
                            data={"train": [__file__], "format": "text"}, train={"micro_batch": 1, "micro_batches": 8},
                            pipeline={"stages": 4})
    path, moved = os.path.join(folder, "moved.yaml"), set()
    free = plan(folder, job, path, "--schedule", "1f1b")["memory_bytes"]
    for percent in range(95, 65, -5):
        best = plan(folder, job, path, "--schedule", "1f1b", "--memory", str(int(free * percent / 100)))
        if "order" in best:  # none under the policy auto, where the run chooses
            assert simulated(folder, path)["order"] == best["order"], best
            moved.add(best["policy"])
    assert moved - {"none"}, moved
    print("ok under limits:", moved)


def check_limited(folder):
    """Orders that are searched within the slots that fit: the written job makes the same, within the limit."""
    job = ballast.write_job(folder, name="limited.yaml", model=ballast.small_inline(layers=4, seq=128),
                            data={"train": [__file__], "format": "text"}, train={"micro_batch": 1, "micro_batches": 8},
                            pipeline={"stages": 4})
    path, found = os.path.join(folder, "within.yaml"), set()
    free = plan(folder, job, path, "--schedule", "zb-h1")
    assert "slots" not in free
    for percent in (95, 85, 75) if ballast.LONG else (85,):
        limit = int(free["memory_bytes"] * percent / 100)
        best = plan(folder, job, path, "--schedule", "zb-h1", "--memory", str(limit))
        if "slots" in best:
            other = simulated(folder, path)
            assert other["order"] == best["order"] and best["memory_bytes"] <= limit, best
            assert all(stage["peak_slots"] <= best["slots"] for stage in other["stages"]), (best, other["stages"])
            found.add(best["policy"])
    assert found, "nothing was searched within a limit"
    print("ok within slots:", found)


def check_executed(folder, job):
    """From a profile of this machine: planned, run for real, traced."""
    profile, path = os.path.join(folder, "profile.json"), os.path.join(folder, "planned.yaml")
    reference, _ = ballast.run_job(folder, job, "--local", "--profile", profile)
    best = plan(folder, job, path, "--profile", profile, "--schedule", "zb-h1")
    assert simulated(folder, path)["order"] == simulated(folder, path, "--profile", profile)["order"] == best["order"]
    report, trace = os.path.join(folder, "report.jsonl"), os.path.join(folder, "step.json")
    run = subprocess.Popen([ballast.CTL, "run", path, "--local", "--report", report, "--set", "train.steps=100000"],
                           env=ballast.environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    try:
        steps = len(ballast.losses(reference))
        ballast.wait_until(lambda: os.path.exists(report) and open(report).read().count("\n") >= steps, 120, "no steps")
        ctl(folder, "trace", "--to", trace, "--timeout", "60")
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(120)
    with open(trace) as file:
        assert executed(json.load(file)) == [computing(row) for row in best["order"]]
    assert ballast.losses(ballast.read_report(report))[:steps] == ballast.losses(reference)
    print("ok executed")


def check_handed(folder):
    """Forwards first under the name of 1f1b, to driver and stages that are started by hand."""
    sections = {"model": ballast.small_inline(hidden=32, layers=2, seq=16), "data": {"train": [__file__], "format": "text"},
                "train": {"steps": 2, "micro_batch": 1, "micro_batches": BATCH}, "pipeline": {"stages": STAGES}}
    reference, _ = ballast.run_job(folder, ballast.write_job(folder, **sections), "--local")
    order, trace, address = (os.path.join(folder, name) for name in ("order.csv", "handed.json", "driver.sock"))
    shape = ("--stages", str(STAGES), "--micro-batches", str(BATCH), "--to", order)
    ctl(folder, "schedule", "export", "--schedule", "gpipe", *shape)
    with open(order) as file:
        rows = [line.strip().split(",") for line in file]
    with ballast.stages(folder, STAGES) as services:
        job = ballast.write_job(folder, **sections,
                                services={"stages": [s.address for s in services], "driver": f"unix:{address}"})
        command = ("--job", job, "--order", order, "--listen", f"unix:{address}")
        driver = ballast.Service(folder, "ballast-driver", *command, "--linger")
        try:
            report, _ = ballast.run_job(folder, job)
            ctl(folder, "trace", "--endpoint", f"unix:{address}", "--to", trace, "--timeout", "60")
        finally:
            driver.end()
        with open(trace) as file:
            assert executed(json.load(file)) == rows
        assert ballast.losses(report) == ballast.losses(reference)
        ctl(folder, "schedule", "export", "--schedule", "zb-h1", *shape)
        refused = subprocess.run([os.path.join(ballast.BIN, "ballast-driver"), *command], env=ballast.environment(folder),
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
        assert refused.returncode == 2 and "pipeline.schedule" in refused.stderr, refused
        assert "none of 1f1b: it splits backwards" in refused.stderr, refused.stderr
    print("ok handed")


def main():
    with ballast.scratch() as folder:
        job = ballast.write_job(folder, model=ballast.small_inline(hidden=32, layers=6, seq=16, vocab=4096),
                                data={"train": [__file__], "format": "text"},
                                train={"steps": 4, "micro_batch": 1, "micro_batches": BATCH}, pipeline={"stages": STAGES})
        check_planned(folder, job)
        check_moved(folder)
        check_limited(folder)
        check_executed(folder, job)
        check_handed(folder)


main()
