# SPDX-License-Identifier: Apache-2.0
"""How tensor ranks are shown and named. The report, `stages`, `health`, `doctor`, `preflight`, the run's page, pictures and
traces say which stage, tensor rank and replica; with separate services as well. A rank that hangs in a collective is named by
those that wait for it. What cannot be shared is refused by its key, with what can."""
import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request

from ballast import (CTL, Run, Service, assert_nothing_left, descendants, environment, losses, on, run_job, scratch,
                     shared_memory_files, small_inline, stages, wait_until, write_job)

PARKING = {"policy": "bpipe"}  # of 1f1b on four stages, the first ones park


def coords_of_grid(count, tensor, data):
    """In the order of ranks."""
    return [(s, t, d) for d in range(data) for s in range(count) for t in range(tensor)]


COORDS = coords_of_grid(2, 2, 2)
NAMES = [f"tensor rank {t} of stage {s} of replica {d}" for s, t, d in COORDS]


def job_of(folder, count=2, data=2, **more):
    return write_job(folder, **{"model": small_inline(), "data": {"train": [__file__], "format": "text"},
                                "train": {"steps": 3, "micro_batch": 2, "micro_batches": 16},
                                "pipeline": {"stages": count},
                                "parallel": {"tensor": 2, "data": data, "data_parts": 2}, **more})


def told(folder, *words, code=0):
    done = subprocess.run([CTL, *words], env=environment(folder), stdin=subprocess.DEVNULL, text=True, capture_output=True,
                          timeout=60)
    assert code is None or done.returncode == code, f"{words}: {done.returncode}, {done.stderr}"
    return done.stdout + done.stderr


def coords_of(entry):
    return entry["stage"], entry["tensor"], entry["data"]


def report_and_pictures(folder):
    """Entries by coordinates, times that add up, a store of every plane, and rows and processes with names."""
    picture = os.path.join(folder, "step.svg")
    coords = coords_of_grid(4, 2, 2)
    job = job_of(folder, count=4, balance=PARKING)
    report, done = run_job(folder, job, "--local", "--summary", "--timeline", picture)
    steps = [event for event in report if event["event"] == "step"]
    for step in steps:
        assert [coords_of(stage) for stage in step["stages"]] == coords, step
        for stage in step["stages"]:
            assert 0 <= stage["busy_seconds"] + stage["stall_seconds"] <= 1.5 * step["seconds"] + 0.05, (stage, step["seconds"])
        stores = step["stores"]
        assert [(store["device"], store["tensor"], store["data"]) for store in stores] == coords, stores
        assert all(store["peak_leased"] == store["lent_slots"] for store in stores), stores
        assert {stage["evicted"] > 0 for stage in step["stages"] if stage["stage"] == 0} == {True}, step
    assert "4 stages of 2 tensor ranks in 2 replicas" in done.stdout + done.stderr, done.stdout + done.stderr
    assert "TENSOR" in done.stdout + done.stderr and "REPLICA" in done.stdout + done.stderr, done.stdout
    with open(picture, encoding="utf-8") as file:
        assert "<svg" in file.read(200)
    print("ok the report, its summary and a picture of 16 ranks")
    return losses(report)


def look(folder):
    """All views of a run."""
    listed = wait_until(lambda: (lambda rows: rows if all(row["paths"] for row in rows) else None)(
        json.loads(told(folder, "stages", "-o", "json"))), 30, "no paths are told")
    assert [coords_of(row) for row in listed] == COORDS, listed
    for row in listed:
        s, t, d = coords_of(row)
        expected = {(s, 1 - t, d), (1 - s, t, d), (s, t, 1 - d)}  # its group, its boundary, its replica
        assert {coords_of(path) for path in row["paths"]} == expected, row["paths"]
    table = told(folder, "stages", "-o", "wide")
    assert "TENSOR" in table and f"{NAMES[1]}: shm" in table, table
    healthy = told(folder, "health")
    assert all(name.replace(" ", "-") + " " in healthy for name in NAMES), healthy
    trace = os.path.join(folder, "trace.json")
    told(folder, "trace", "--to", trace)
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == dict(enumerate(NAMES)), processes
    picture = os.path.join(folder, "memory.svg")
    told(folder, "stages", "--to", picture)
    with open(picture, encoding="utf-8") as file:
        assert "</svg>" in file.read()
    assert "must end in .svg or .png" in told(folder, "stages", "--to", f"{folder}/memory.jpg", code=2)
    page = json.loads(told(folder, "status", "-o", "json"))["page"]
    with urllib.request.urlopen(f"{page.rstrip('/')}/api/run", timeout=10) as answer:
        names = json.load(answer)["names"]
    assert names == [f"{s}, tensor rank {t} of replica {d}" for s, t, d in COORDS], names


def while_it_runs(folder):
    """Then a rank hangs: who waits for it says so, and the run ends by its name."""
    shared = shared_memory_files()
    run = Run(folder, job_of(folder, train={"steps": 100000, "micro_batch": 2, "micro_batches": 8}), "--local")
    try:
        run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        look(folder)
        pids, victim = descendants(run.pid), run.steps()[-1]["stages"][5]
        assert coords_of(victim) == COORDS[5], victim
        named = [f"with {NAMES[5]}", f"from {NAMES[5]}", f"to {NAMES[5]}", f"{NAMES[5]}: Commit"]
        waits = [""]
        while not any(words in waits[-1] for words in named) and run.process.poll() is None:
            os.kill(victim["pid"], signal.SIGCONT)  # it stood still with a core that others wait for first: another moment
            time.sleep(0.1)
            os.kill(victim["pid"], signal.SIGSTOP)
            begin = time.monotonic()
            while not any(words in waits[-1] for words in named) and time.monotonic() < begin + 2.5:
                waits.append(told(folder, "doctor", code=None))
        assert any(words in text for text in waits for words in named), waits[-3:]
        message = run.end(5)
        assert time.monotonic() - begin < 30, "it took too long"
        assert NAMES[5] in message and "is gone: no answer" in message, message
    finally:
        with contextlib.suppress(ProcessLookupError, UnboundLocalError):
            os.kill(victim["pid"], signal.SIGCONT)
        run.kill()
    assert_nothing_left(folder, pids, shared)
    print("ok stages, health, trace, page and doctor name ranks; a rank that hangs is named by those that wait")


def services(folder, expected):
    names = [f"tensor rank {t} of stage {s}" for s, t, _ in coords_of_grid(4, 2, 1)]
    with stages(folder, len(names)) as ranks:
        stores = [Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64 MiB") for _ in ranks]
        try:
            for path in ("shm", "tcp"):
                job = job_of(folder, count=4, data=1, balance={**PARKING, "data_path": path})
                report, _ = run_job(folder, job, *on(ranks, stores))
                assert losses(report) == expected, path
            seen = told(folder, "preflight", job, *on(ranks, stores))
            assert all(name in seen for name in names) and "failed" not in seen, seen
            assert f"{names[0]} to {names[1]}" in seen and f"{names[0]} to {names[2]}" in seen, seen
            _, done = run_job(folder, job, *on(ranks[:4], stores), expect=2)
            assert "services.stages" in done.stderr and "are 8 ranks" in done.stderr, done.stderr
        finally:
            for store in stores:
                store.kill(signal.SIGKILL)
    print("ok separate services, shm and tcp: the same bits, preflight by coordinates, too few addresses refused")


def refusals(folder):
    """What is wrong, and what is nearest to it."""
    cases = [({"parallel": {"tensor": 3}}, ["parallel.tensor", "3"]),
             ({"parallel": {"tensor": 4, "tensor_parts": 2}}, ["parallel.tensor", "2"]),
             ({"parallel": {"tensor": 8}}, ["heads", "8", "4"]),
             ({"parallel": {"tensor": 2}, "model": {**small_inline(), "family": "llama", "ffn": 48, "kv_heads": 1}},
              ["model.kv_heads", "1"]),
             ({"parallel": {"tensor": 4}, "train": {"steps": 1, "micro_batch": 1, "micro_batches": 4},
               "model": {**small_inline(), "seq": 18}}, ["train.micro_batch x model.seq", "18"]),
             ({"parallel": {"tensor": 128}}, ["parallel.tensor", "64"])]
    for more, words in cases:
        _, done = run_job(folder, job_of(folder, **more), "--local", expect=2)
        assert all(word in done.stderr for word in words), (more, done.stderr)
    print(f"ok {len(cases)} refusals")


def main():
    with scratch() as folder:
        services(folder, report_and_pictures(folder))
        refusals(folder)
    with scratch() as folder:
        while_it_runs(folder)


if __name__ == "__main__":
    main()
