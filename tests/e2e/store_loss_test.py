# SPDX-License-Identifier: Apache-2.0
"""Stores killed at random points of a run, again and again, each started again by ballastctl: the losses are those of an
undisturbed run bit by bit, what was lost or dropped was recomputed, and the returned store is used again. With
balance.on_loss abort the step is run again instead. A store that is killed before it is ready is started again, too.
BALLAST_TEST_KILLS: how many (4)."""
import os
import signal
import time

from ballast import (GOLDEN, Run, assert_nothing_left, descendants, losses, program_of, run_job, scratch, seed,
                     shared_memory_files, small_inline, stages_of, wait_until, write_job)

KILLS = int(os.environ.get("BALLAST_TEST_KILLS", 4))


def run_and_kill(folder, job, choice, kills, *arguments):
    """The steps of a run whose store of device 3 is killed again and again."""
    run = Run(folder, job, "--local", *arguments)

    def parks_without(store):
        """At the store of device 3, if that is not the one that was killed."""
        return lambda steps: (any(stage["loaded"] for stage in stages_of(steps[-1:])) and
                              steps[-1]["stores"][3]["pid"] != store)

    steps = run.wait_for(parks_without(0), "no step that parks blocks")
    pids = set(descendants(run.pid))
    for kill in range(kills):
        store = steps[-1]["stores"][3]["pid"]
        time.sleep(choice.uniform(0, 0.1))
        os.kill(store, signal.SIGKILL)
        # Started again, known to the driver, and used again.
        steps = run.wait_for(parks_without(store), f"after kill {kill + 1} no block is parked at a new store")
        pids.update(descendants(run.pid))
    run.end(130, signal.SIGINT)
    return run.steps(), pids


def run_and_kill_at_once(folder, job):
    """The steps of a run one of whose stores is killed as soon as there is one, and the processes."""
    run = Run(folder, job, "--local", "--steps", "3")
    stores = wait_until(lambda: [pid for pid in descendants(run.pid) if program_of(pid) == "activation-store"], 60,
                        "no store")
    os.kill(stores[0], signal.SIGKILL)
    pids = {*stores, *descendants(run.pid)}
    run.end()
    return run.steps(), pids


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

        aborting, pids = run_and_kill(folder, job, choice, max(KILLS // 5, 2), "--set", "balance.on_loss=abort")
        assert_nothing_left(folder, pids, shared)
        counts = totals(aborting)
        assert counts["lost"] == 0, counts
        print(f"ok {max(KILLS // 5, 2)} kills with on_loss abort in {len(aborting)} steps: {counts}")

        begun, pids = run_and_kill_at_once(folder, job)
        assert_nothing_left(folder, pids, shared)
        assert len(begun) == 3, begun
        print("ok a store is killed before the run begins")

        steps = max(len(recomputing), len(aborting))
        expected = losses(run_job(folder, job, "--local", "--steps", str(steps), "--set", "balance.policy=none",
                                  "--set", "pipeline.stages=1", timeout=600 + steps)[0])
        assert losses(recomputing) == expected[:len(recomputing)], "other losses"
        assert losses(aborting) == expected[:len(aborting)], "other losses with on_loss abort"
        assert losses(begun) == expected[:len(begun)], "other losses with a store killed at the start"
        print("ok the losses of an undisturbed run")


if __name__ == "__main__":
    main()
