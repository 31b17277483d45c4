# SPDX-License-Identifier: Apache-2.0
"""Processes that are stopped and go on: a store that falls silent in a run is given up and used again once it goes on; a
stage that stands still for a while goes on; the losses are those of an undisturbed run bit by bit. Recomputed blocks
beyond balance.max_recomputes_per_hour end the run with an error that names it."""
import os
import signal
import time

from ballast import (GOLDEN, Run, assert_nothing_left, descendants, losses, run_job, scratch, shared_memory_files,
                     small_inline, stages_of, write_job)


def count(steps, key):
    return sum(stage[key] for stage in stages_of(steps))


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=64, layers=4, seq=64),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4},
                        memory={"slots": 3}, balance={"policy": "bpipe"})
        run = Run(folder, job, "--local")
        seen = run.wait_for(lambda steps: count(steps, "loaded") > 0, "no step that parks blocks")
        pids = descendants(run.pid)
        store = seen[-1]["stores"][3]["pid"]
        os.kill(store, signal.SIGSTOP)
        seen = run.wait_for(lambda steps: count(steps, "recomputed") > 0, "a silent store is not given up")
        os.kill(store, signal.SIGCONT)
        run.wait_for(lambda steps: count(steps[len(seen):], "loaded") > 0, "the store is not used again")
        print("ok a store that stood still")
        for rank in (0, 3):
            seen = run.steps()
            pid = seen[-1]["stages"][rank]["pid"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.5)
            os.kill(pid, signal.SIGCONT)
            run.wait_for(lambda steps: count(steps[len(seen) + 1:], "loaded") > 0, "no step after SIGCONT")
        print("ok stages that stood still")
        run.end(130, signal.SIGINT)
        assert_nothing_left(folder, pids, shared)
        events = run.steps()
        assert all(stage["recomputed"] == stage["lost"] + stage["dropped"] for stage in stages_of(events))
        expected = losses(run_job(folder, job, "--local", "--steps", str(len(events)), "--set", "balance.policy=none",
                                  "--set", "pipeline.stages=1", timeout=600 + len(events))[0])
        assert losses(events) == expected, "other losses"

        run = Run(folder, job, "--local", "--set", "balance.max_recomputes_per_hour=0")
        seen = run.wait_for(lambda steps: count(steps, "loaded") > 0, "no step that parks blocks")
        os.kill(seen[-1]["stores"][3]["pid"], signal.SIGKILL)
        message = run.end(8)
        assert "balance.max_recomputes_per_hour is 0" in message, message[-3000:]
        print("ok the budget of recomputations")


if __name__ == "__main__":
    main()
