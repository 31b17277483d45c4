# SPDX-License-Identifier: Apache-2.0
"""`ballastctl doctor` names a stage's wait at a store while it lasts: the store, the lease there, the block's chunk and
micro-batch, since when. On a slow path the lease it names is one that the store has for that stage and block; while the
store stands still (SIGSTOP) the stage still says all of it."""
import json
import os
import signal
import subprocess
import time

import ballast


def ctl(folder, *words):
    done = subprocess.run([ballast.CTL, *words, "-o", "json"], env=ballast.environment(folder), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout) if done.stdout else [], done.stderr


def store_waits(folder):
    """What doctor says of stages that wait at a store and have a lease there, and its verdict."""
    rows, verdict = ctl(folder, "doctor")
    for row in rows:
        if "store" in row:
            assert row["waits_for"] in (f"eviction to store {row['store']}", f"load from store {row['store']}"), row
            assert row["seconds"] >= 0 and "peer" not in row, row
            assert row["chunk"] in range(4) and row["micro_batch"] in range(16), row
            assert row["who"] == f"stage {row['chunk']}" and row["store"] == 3 - row["chunk"], row  # 1F1B, pairs
    return [row for row in rows if row.get("lease")], verdict


def stop(run):
    for _ in range(2):  # the second one does not wait for the step
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert run.process.wait(90) in (0, 130)


def slow_path(folder, job):
    run = ballast.Run(folder, job, "--local", "--set", "balance.rate=20000")
    try:
        def named():
            waits, verdict = store_waits(folder)
            leases, _ = ctl(folder, "leases", "list")
            for wait in waits:
                for lease in leases:
                    same = lease["lease"] == wait["lease"] and lease.get("micro_batch") == wait["micro_batch"]
                    if same and f"stage {lease['stage']}" == wait["who"] and wait["seconds"] > 0:
                        return wait, lease["state"], verdict
            return None
        run.wait_for(lambda _: named() is not None, "doctor does not name the lease that a stage waits for")
        wait, state, verdict = ballast.wait_until(named, 90, "the wait is gone")
        assert state in ("writing", "sealed", "loading", "reserved"), state
        print(f"ok {wait['who']} waits for {wait['waits_for']}, lease {wait['lease']} ({state}): {verdict.strip()}")
    finally:
        stop(run)


def stopped_store(folder, job):
    run = ballast.Run(folder, job, "--local")
    try:
        waits = []
        while not waits:  # the stage may have had nothing to move there just then: again
            seen = run.wait_for(lambda steps: any(stage["loaded"] for stage in ballast.stages_of(steps[-1:])), "no loads")
            store = seen[-1]["stores"][3]["pid"]
            os.kill(store, signal.SIGSTOP)
            try:
                def looked(steps):
                    found = [wait for wait in store_waits(folder)[0] if wait["store"] == 3 and wait["seconds"] > 0.3]
                    waits.extend(found)
                    return found or len(steps) > len(seen) + 2  # given up: the step went on without it
                run.wait_for(looked, "no step under a stopped store")
            finally:
                os.kill(store, signal.SIGCONT)
        assert waits[0]["lease"].startswith("3/"), waits
        print(f"ok store 3 stands still: {waits[0]['who']} waits for {waits[0]['waits_for']}, {waits[0]['lease']}")
    finally:
        stop(run)


def main():
    with ballast.scratch() as folder:
        job = ballast.write_job(folder, model=ballast.small_inline(), data={"train": [__file__], "format": "text"},
                                train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16},
                                pipeline={"stages": 4}, memory={"slots": 3}, balance={"policy": "bpipe"})
        slow_path(folder, job)
        stopped_store(folder, job)


main()
