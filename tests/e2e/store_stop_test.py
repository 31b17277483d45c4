# SPDX-License-Identifier: Apache-2.0
"""Processes that are stopped and go on: a store that falls silent in a run is given up and used again once it goes on; a
stage that stands still for a while goes on; the losses are those of an undisturbed run bit by bit. Recomputed blocks
beyond balance.max_recomputes_per_hour end the run with an error that names it."""
import os
import signal
import subprocess
import time

from ballast import (CTL, GOLDEN, assert_nothing_left, descendants, environment, losses, read_report, run_job, scratch,
                     shared_memory_files, small_inline, wait_until, write_job)


def start(folder, job, *arguments):
    report = os.path.join(folder, f"stop-{time.monotonic_ns()}.jsonl")
    errors = os.path.join(folder, "errors")
    with open(errors, "w") as file:
        process = subprocess.Popen([CTL, "run", job, "--local", "--report", report, *arguments],
                                   env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=file)
    return process, report, errors


def steps(report):
    """The whole lines so far."""
    try:
        with open(report) as file:
            text = file.read()
    except OSError:
        return []
    whole = text[:text.rfind("\n") + 1]
    path = report + ".whole"
    with open(path, "w") as file:
        file.write(whole)
    return [event for event in read_report(path) if event["event"] == "step"]


def count(events, key):
    return sum(stage[key] for event in events for stage in event["stages"])


def wait_for(report, process, condition, what):
    wait_until(lambda: process.poll() is not None or condition(steps(report)), 90, what)
    assert process.poll() is None, "the run ended"


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=64, layers=4, seq=64),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4},
                        memory={"slots": 3}, balance={"policy": "bpipe"})
        process, report, errors = start(folder, job)
        wait_for(report, process, lambda events: count(events, "loaded") > 0, "no step that parks blocks")
        pids = descendants(process.pid)
        store = steps(report)[-1]["stores"][3]["pid"]
        os.kill(store, signal.SIGSTOP)
        wait_for(report, process, lambda events: count(events, "recomputed") > 0, "a silent store is not given up")
        os.kill(store, signal.SIGCONT)
        seen = len(steps(report))
        wait_for(report, process, lambda events: count(events[seen:], "loaded") > 0, "the store is not used again")
        print("ok a store that stood still")
        for rank in (0, 3):
            seen = len(steps(report))
            pid = steps(report)[-1]["stages"][rank]["pid"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(pid, signal.SIGCONT)
            wait_for(report, process, lambda events: count(events[seen + 1:], "loaded") > 0, "no step after SIGCONT")
        print("ok stages that stood still")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert_nothing_left(folder, pids, shared)
        events = steps(report)
        assert all(stage["recomputed"] == stage["lost"] + stage["dropped"] for e in events for stage in e["stages"])
        expected = losses(run_job(folder, job, "--local", "--steps", str(len(events)), "--set", "balance.policy=none",
                                  "--set", "pipeline.stages=1", timeout=600 + len(events))[0])
        assert losses(events) == expected, "other losses"

        process, report, errors = start(folder, job, "--set", "balance.max_recomputes_per_hour=0")
        wait_for(report, process, lambda events: count(events, "loaded") > 0, "no step that parks blocks")
        os.kill(steps(report)[-1]["stores"][3]["pid"], signal.SIGKILL)
        code = process.wait(90)
        message = open(errors).read()
        assert code == 8 and "balance.max_recomputes_per_hour is 0" in message, (code, message[-3000:])
        print("ok the budget of recomputations")


if __name__ == "__main__":
    main()
