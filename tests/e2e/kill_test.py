# SPDX-License-Identifier: Apache-2.0
"""A stage killed in the middle of a step: the run names stage and cause within 10 s, exits with 5 and leaves nothing.
Ctrl-C, SIGTERM, a terminal that is closed (SIGHUP), a killed driver and a killed ballastctl leave nothing either."""
import os
import signal
import time

from ballast import (Run, alive, assert_nothing_left, descendants, program_of, read_report, scratch, seed,
                     shared_memory_files, small_inline, wait_until, write_job)


def start(folder, job):
    """A run of its own session that has made steps, and all its processes."""
    run = Run(folder, job, "--local", start_new_session=True)
    run.wait_for(lambda steps: len(steps) >= 2, "the run did not make two steps")
    return run, descendants(run.pid)


def a_stage_is_killed(folder, job, choice, shared, number):
    run, pids = start(folder, job)
    victims = [pid for pid in pids if program_of(pid) == "stage-service"]
    assert len(victims) == 3, f"expected 3 stages, found {[program_of(p) for p in pids]}"
    time.sleep(choice.uniform(0, 0.5))
    rank = choice.randrange(3)
    stage_pid = [stage["pid"] for stage in run.steps()[-1]["stages"]][rank]
    assert stage_pid in victims, "the report names the processes"
    begin = time.monotonic()
    os.kill(stage_pid, number)
    message = run.end(5)
    seconds = time.monotonic() - begin
    assert seconds < 30, f"took {seconds:.1f} s"
    assert f"stage {rank}" in message, f"does not name stage {rank}:\n{message[-3000:]}"
    assert "signal 9" in message or "SIGKILL" in message or "Killed" in message or number != signal.SIGKILL, message
    read_report(run.report)  # every line whole
    assert_nothing_left(folder, pids, shared)
    print(f"ok stage {rank} killed by signal {number.value}: exit 5 after {seconds:.2f} s")


def the_run_is_ended(folder, job, shared, number):
    run, pids = start(folder, job)
    begin = time.monotonic()
    run.end(130, number)
    read_report(run.report)
    assert_nothing_left(folder, pids, shared)
    print(f"ok {number.name}: exit 130 after {time.monotonic() - begin:.2f} s")


def the_driver_is_killed(folder, job, shared):
    run, pids = start(folder, job)
    os.kill(next(pid for pid in pids if program_of(pid) == "ballast-driver"), signal.SIGKILL)
    message = run.end(5)
    assert "driver" in message, f"driver killed: {message[-3000:]}"
    assert_nothing_left(folder, pids, shared)
    print("ok driver killed: exit 5")


def ballastctl_is_killed(folder, job, shared):
    run, pids = start(folder, job)
    run.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids), 60, "children outlive a killed ballastctl")
    assert not shared_memory_files() - shared
    print("ok ballastctl killed: no orphans")


def main():
    choice = seed()
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(), data={"train": [__file__], "format": "text"},
                        train={"steps": 100000, "micro_batch": 4, "micro_batches": 8}, pipeline={"stages": 3})
        for number in (signal.SIGKILL, signal.SIGSEGV):
            a_stage_is_killed(folder, job, choice, shared, number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            the_run_is_ended(folder, job, shared, number)
        the_driver_is_killed(folder, job, shared)
        ballastctl_is_killed(folder, job, shared)


main()
