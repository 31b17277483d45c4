# SPDX-License-Identifier: Apache-2.0
"""`ballastctl trace` of a running job: every stage's operations of one whole step, each once and none overlapping on its
line, waits under their reasons, slot counters, and a file that is replaced whole or not at all; the same
as pictures. A job that parks at the host has a row of its link: the blocks of the simulated step, each out and back, one at a
time, with the bytes that stages report. Operations of tensor ranks say how long they waited for each other."""
import json
import os
import signal
import subprocess

import ballast

STAGES, MICRO_BATCHES = 3, 8
LINK_STAGES = 4  # of which two park


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
        for op_type in "F", "B":
            expected = sorted(f"{stage}{op_type}{i}" for i in range(MICRO_BATCHES))
            assert [c for c in cells if c[1] == op_type] == expected, (stage, cells)
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


def link(document):
    """What the link to host 0 moves: (rank, direction, chunk, micro-batch) in its order, bytes of each, most that waited."""
    events = document["traceEvents"]
    pid, = (e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "host 0")
    assert pid not in [e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] != "host 0"], pid
    turns = sorted((e for e in events if e["ph"] == "X" and e["pid"] == pid), key=lambda e: e["ts"])
    assert turns and all(e["cat"] == "transfer" and e["tid"] == 0 and e["args"]["waited_us"] >= 0 for e in turns), turns
    for before, after in zip(turns, turns[1:]):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.01, f"{before} overlaps {after}"
    for turn in turns:
        args, way = turn["args"], "E" if turn["args"]["direction"] == "out" else "L"
        assert args["operation"] == f"{args['chunk']}{way}{args['micro_batch']}@{LINK_STAGES}", turn
        assert turn["name"] == f"stage {args['rank']} {args['direction']}: chunk {args['chunk']}, micro-batch {args['micro_batch']}"
    waiting = [e["args"]["transfers"] for e in events if e["ph"] == "C" and e["pid"] == pid]
    assert min(waiting) == 0, waiting
    return [tuple(e["args"][key] for key in ("rank", "direction", "chunk", "micro_batch")) for e in turns], \
        [e["args"]["bytes"] for e in turns], max(waiting)


def check_link(folder):
    """The link is slow enough for stages to wait for each other."""
    job = ballast.write_job(folder, model=ballast.small_inline(), data={"train": [__file__], "format": "text"},
                            train={"steps": 100000, "micro_batch": 4, "micro_batches": MICRO_BATCHES},
                            pipeline={"stages": LINK_STAGES}, memory={"slots": 2},
                            balance={"policy": "offload", "host": "64MiB", "rate": 20000000})
    simulated, path, picture = (os.path.join(folder, name) for name in ("simulated.json", "recorded.json", "recorded.svg"))
    done = subprocess.run([ballast.CTL, "simulate", job, "--perfetto", simulated, "--svg", picture, "-o", "json"], text=True,
                          env=ballast.environment(folder), timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    evict_bytes = [stage["evict_bytes"] for stage in json.loads(done.stdout)["stages"]]
    with open(simulated) as file:
        expected, expected_bytes, most = link(json.load(file))
    assert sorted(expected_bytes) == sorted(evict_bytes[rank] for rank, *_ in expected), (expected_bytes, evict_bytes)
    assert len(expected) == len(set(expected)) >= 2 * MICRO_BATCHES and most >= 1, (expected, most)
    run = ballast.Run(folder, job, "--local")
    try:
        run.wait_for(lambda steps: len(steps) >= 1, "no step was made")
        done = trace(folder, "--to", path)
        assert done.returncode == 0, done.stderr
        with open(path) as file:
            moved, moved_bytes, most = link(json.load(file))
        assert sorted(moved) == sorted(expected) and sorted(moved_bytes) == sorted(expected_bytes), (moved, expected)
        assert most >= 1, "no transfer waited for the link"
        for one, back in ((m, m[:1] + ("back",) + m[2:]) for m in moved if m[1] == "out"):
            assert moved.index(one) < moved.index(back), (one, back)
        done = trace(folder, "--to", picture)
        assert done.returncode == 0 and os.path.getsize(picture) > 5000, done.stderr
        run.end(expect=130, number=signal.SIGINT)
    finally:
        run.kill()
    print(f"host 0: {len(moved)} transfers, {sum(moved_bytes)} bytes, at most {most} waited; first {moved[:4]}")


def check_waits_in_operations(folder):
    """Tensor ranks wait for each other within operations: less than these take, and others' operations have no such waits."""
    for tensor in 1, 2:
        job = ballast.write_job(folder, model=ballast.small_inline(), data={"train": [__file__], "format": "text"},
                                train={"steps": 100000, "micro_batch": 2, "micro_batches": 4}, pipeline={"stages": 1},
                                parallel={"tensor": tensor})
        run, path = ballast.Run(folder, job, "--local"), os.path.join(folder, "waits.json")
        try:
            run.wait_for(lambda steps: len(steps) >= 2, "no steps")
            done = trace(folder, "--to", path)
            assert done.returncode == 0, done.stderr
        finally:
            run.end(130, signal.SIGINT)
        with open(path) as file:
            events = [e for e in json.load(file)["traceEvents"] if e.get("cat") == "operation"]
        waited = [(e["args"].get("waited_for_tensor_ranks_us", 0), e["dur"]) for e in events]
        assert {e["pid"] for e in events} == set(range(tensor)), events
        assert all(w < dur for w, dur in waited), waited
        assert any(w > 0 for w, _ in waited) == (tensor > 1), waited
    print(f"tensor ranks waited for each other {sum(w for w, _ in waited) / sum(d for _, d in waited):.0%} of their operations")


def main():
    with ballast.scratch() as folder:
        check_link(folder)
    with ballast.scratch() as folder:
        check_waits_in_operations(folder)
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
