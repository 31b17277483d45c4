# SPDX-License-Identifier: Apache-2.0
"""`ballastctl trace` of a running job: every stage's operations of one whole step, each once and none overlapping on its
line, waits under their reasons, slot counters, and a file that is replaced whole or not at all; the same
as pictures."""
import json
import os
import signal
import subprocess

import ballast

STAGES, MICRO_BATCHES = 3, 8


def trace(folder, *arguments):
    return subprocess.run([ballast.CTL, "trace", *arguments], env=ballast.environment(folder), text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def check(document):
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {i: f"stage {i}" for i in range(STAGES)}, names
    for stage in range(STAGES):
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == stage]
        cells = sorted(e["name"] for e in spans if e["cat"] == "operation")
        for verb in "F", "B":
            expected = sorted(f"{stage}{verb}{i}" for i in range(MICRO_BATCHES))
            assert [c for c in cells if c[1] == verb] == expected, (stage, cells)
        for line in 0, 1:
            ordered = sorted((e["ts"], e["dur"], e["name"]) for e in spans if e["tid"] == line)
            for before, after in zip(ordered, ordered[1:]):
                assert before[0] + before[1] <= after[0] + 0.01, f"stage {stage}: {before} overlaps {after}"
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
        slots = [e["args"]["slots"] for e in events if e["ph"] == "C" and e["pid"] == stage]
        assert len(slots) == len(cells) and slots[-1] == 0 and max(slots) >= 1, slots
    waits = [e["name"] for e in events if e.get("cat") == "wait"]
    assert any("stage" in name for name in waits), f"waits name whom they are for: {waits}"
    print(f"{len(events)} events, waits such as: {waits[0]}")


def main():
    with ballast.scratch() as folder:
        assert trace(folder, "--to", "x.json").returncode == 3, "no run"
        assert trace(folder).returncode == 2, "no file"
        job = ballast.write_job(folder, model=ballast.small_inline(), data={"train": [__file__], "format": "text"},
                                train={"steps": 100000, "micro_batch": 4, "micro_batches": MICRO_BATCHES},
                                pipeline={"stages": STAGES})
        report, path = os.path.join(folder, "report.jsonl"), os.path.join(folder, "step.json")
        run = subprocess.Popen([ballast.CTL, "run", job, "--local", "--report", report], start_new_session=True,
                               env=ballast.environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            ballast.wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 120, "no step was made")
            for _ in range(3):
                done = trace(folder, "--to", path)
                assert done.returncode == 0, done.stderr
                with open(path) as file:
                    check(json.load(file))
            for name, beginning in ("step.svg", b"<?xml"), ("step.png", b"\x89PNG"):
                picture = os.path.join(folder, name)
                done = trace(folder, "--to", picture)
                assert done.returncode == 0, done.stderr
                with open(picture, "rb") as file:
                    drawn = file.read()
                assert drawn.startswith(beginning) and len(drawn) > 5000, (name, drawn[:20], len(drawn))
            done = trace(folder, "--to", os.path.join(folder, "nowhere", "step.json"))
            assert done.returncode != 0 and "nowhere" in done.stderr, done
        finally:
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(120) in (0, 130)


main()
