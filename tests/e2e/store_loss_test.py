# SPDX-License-Identifier: Apache-2.0
"""Stores killed at random points of a run, again and again, each started again by ballastctl: the losses are those of an
undisturbed run bit by bit, what was lost or dropped was recomputed, and the returned store is used again. With
balance.on_loss abort the step is run again instead. A budget of recomputations ends the run with an error that names it.
BALLAST_TEST_KILLS: how many (20)."""
import os
import signal
import subprocess
import time

from ballast import (CTL, GOLDEN, alive, assert_nothing_left, descendants, environment, losses, program_of, read_report,
                     run_job, scratch, seed, shared_memory_files, small_inline, wait_until, write_job)

KILLS = int(os.environ.get("BALLAST_TEST_KILLS", 20))


def last_step(path):
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        return read_report(path)[-1] if len(lines) > 1 and lines[-1] == b"" else None
    except (OSError, ValueError, IndexError):
        return None


def parks(step):
    return step is not None and sum(stage["loaded"] for stage in step["stages"]) > 0


def run_and_kill(folder, job, choice, kills, *arguments):
    """The steps of a run whose store of device 3 is killed again and again."""
    report = os.path.join(folder, f"loss-{time.monotonic_ns()}.jsonl")
    errors = os.path.join(folder, "errors")
    with open(errors, "w") as file:
        process = subprocess.Popen([CTL, "run", job, "--local", "--report", report, *arguments],
                                   env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=file)

    def is_back(store):
        step = last_step(report)
        return process.poll() is not None or (parks(step) and step["stores"][3]["pid"] != store)

    wait_until(lambda: is_back(0), 60, "no step that parks blocks")
    pids = set(descendants(process.pid))
    for kill in range(kills):
        store = wait_until(lambda: last_step(report), 10, "no whole line")["stores"][3]["pid"]
        time.sleep(choice.uniform(0, 0.1))
        os.kill(store, signal.SIGKILL)
        # Started again, known to the driver, and used again.
        wait_until(lambda: is_back(store), 60, f"after kill {kill + 1} no block is parked at a new store")
        assert process.poll() is None, open(errors).read()[-3000:]
        pids.update(descendants(process.pid))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, open(errors).read()[-3000:]
    return [event for event in read_report(report) if event["event"] == "step"], pids


def totals(events):
    for event in events:
        for stage, store in zip(event["stages"], event["stores"]):
            assert stage["recomputed"] == stage["lost"] + stage["dropped"], stage
            assert stage["loaded"] == stage["evicted"] - stage["lost"], stage
            assert stage["own_slots"] + store["lent_slots"] <= 3, event
    return {key: sum(stage[key] for event in events for stage in event["stages"])
            for key in ("evicted", "loaded", "lost", "dropped", "recomputed")}


def main():
    choice = seed()
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=64, layers=4, seq=64),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4},
                        memory={"slots": 3}, balance={"policy": "bpipe"})
        recomputing, pids = run_and_kill(folder, job, choice, KILLS)
        assert_nothing_left(folder, pids, shared)
        counts = totals(recomputing)
        assert counts["recomputed"] > 0, counts
        print(f"ok {KILLS} kills in {len(recomputing)} steps: {counts}")

        aborting, pids = run_and_kill(folder, job, choice, KILLS // 5, "--set", "balance.on_loss=abort")
        assert_nothing_left(folder, pids, shared)
        counts = totals(aborting)
        assert counts["lost"] == 0, counts
        print(f"ok {KILLS // 5} kills with on_loss abort in {len(aborting)} steps: {counts}")

        steps = max(len(recomputing), len(aborting))
        expected = losses(run_job(folder, job, "--local", "--steps", str(steps), "--set", "balance.policy=none",
                                  "--set", "pipeline.stages=1", timeout=600 + steps)[0])
        assert losses(recomputing) == expected[:len(recomputing)], "other losses"
        assert losses(aborting) == expected[:len(aborting)], "other losses with on_loss abort"
        print("ok the losses of an undisturbed run")


if __name__ == "__main__":
    main()
