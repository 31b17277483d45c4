# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a step runs: the step ends, is committed and reported, also when `ballastctl run` is slow to read what it is
told last."""
import glob
import os
import re
import signal
import time

import prometheus
from ballast import Run, on, scratch, small_inline, stages, wait_until, write_job

ROUNDS = 2


def counted(stage):
    address = re.search(r"metrics on http://([^/]+)/metrics", stage.log())[1]
    return int(prometheus.scrape(address).get("ballast_steps_total"))


def driver_is_told(folder):
    for path in glob.glob(os.path.join(folder, "ballast", "**", "driver.log"), recursive=True):
        with open(path) as file:
            if "ending after this step" in file.read():
                return True
    return False


def interrupt(folder, job, stage, number):
    before = counted(stage)
    # Another job each time: of one that it holds the stage would tell its last step again.
    run = Run(folder, job, "--steps", "1000000", "--set", f"train.seed={number}", *on([stage]))
    try:
        run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        stage.process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)  # all that was told before is recorded
        recorded = len(run.steps())
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: driver_is_told(folder), 60, "the driver was not told to end")
        run.process.send_signal(signal.SIGSTOP)
        stage.process.send_signal(signal.SIGCONT)
        wait_until(lambda: counted(stage) > before + recorded, 60, "the step that runs is not committed")
        time.sleep(3)  # longer than a server waits for calls at its end
        run.process.send_signal(signal.SIGCONT)
        log = run.end(130)
    finally:
        stage.process.send_signal(signal.SIGCONT)
        run.kill()
    steps = len(run.steps())
    assert counted(stage) - before == steps, f"the stage made {counted(stage) - before} steps, {steps} are reported"
    assert f"{steps} steps" in log, log


def main():
    with scratch() as folder, stages(folder, 1, prefixes=[((), "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")]) as [stage]:
        job = write_job(folder, model=small_inline(), train={"micro_batches": 8}, pipeline={"stages": 1})
        for number in range(ROUNDS):
            interrupt(folder, job, stage, number)
        print(f"ok {ROUNDS} times every step that was committed is in the report")


if __name__ == "__main__":
    main()
