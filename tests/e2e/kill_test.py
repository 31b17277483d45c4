# SPDX-License-Identifier: Apache-2.0
"""A stage killed in the middle of a step: the run names stage and cause within 10 s, exits with 5 and leaves nothing.
Ctrl-C, SIGTERM, a terminal that is closed (SIGHUP), a killed driver and a killed ballastctl leave nothing either. Ctrl-C
ends a run whose driver dies meanwhile, or of which a store does not react. A terminal that is closed tells it twice: the
checkpoint is written all the same. The folder of a killed run is free at once. A driver
that is stopped is told, and the run goes on when it wakes up."""
import os
import signal
import time

from ballast import (Run, alive, assert_nothing_left, descendants, program_of, read_report, run_job, scratch, seed,
                     shared_memory_files, small_inline, wait_until, write_job)

SOON_S = 30  # half the time that a driver has for its last step


def start(folder, job, *arguments):
    """A run of its own session that has made steps, and all its processes."""
    run = Run(folder, job, "--local", *arguments, start_new_session=True)
    run.wait_for(lambda steps: len(steps) >= 2, "the run did not make two steps")
    return run, descendants(run.pid)


def of(pids, program):
    return [pid for pid in pids if program_of(pid) == program]


def a_stage_is_killed(folder, job, choice, shared, number):
    run, pids = start(folder, job)
    victims = of(pids, "stage-service")
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
    os.kill(of(pids, "ballast-driver")[0], signal.SIGKILL)
    message = run.end(5)
    assert "driver" in message, f"driver killed: {message[-3000:]}"
    assert_nothing_left(folder, pids, shared)
    print("ok driver killed: exit 5")


def ended_soon(run, begin, what):
    seconds = time.monotonic() - begin
    assert seconds < SOON_S, f"{what}: it ended after {seconds:.1f} s\n{run.log()[-3000:]}"
    print(f"ok {what}: exit 130 after {seconds:.2f} s")


def the_driver_is_killed_while_it_stops(folder, job, shared):
    """It leaves its stages behind, as a driver does that is stopped before it has met them."""
    run, pids = start(folder, job, "--verbose")
    os.kill(of(pids, "stage-service")[1], signal.SIGSTOP)  # the step does not end
    run.process.send_signal(signal.SIGINT)
    wait_until(lambda: "ending after this step" in run.log(), 60, "the driver was not told to stop")
    time.sleep(0.2)  # its answer arrives
    begin = time.monotonic()
    os.kill(of(pids, "ballast-driver")[0], signal.SIGKILL)
    run.end(130)
    ended_soon(run, begin, "driver killed after Ctrl-C")
    assert_nothing_left(folder, pids, shared)


def the_driver_is_stopped(folder, job, shared):
    run, pids = start(folder, job)
    driver = of(pids, "ballast-driver")[0]
    os.kill(driver, signal.SIGSTOP)
    wait_until(lambda: f"no answer from the driver (pid {driver}) for 6 s" in run.log(), 20, "its silence is not told")
    os.kill(driver, signal.SIGCONT)
    wait_until(lambda: "answers again" in run.log(), 60, "its return is not told")
    steps = len(run.steps())
    run.wait_for(lambda told: len(told) > steps, "the run does not go on")
    run.end(130, signal.SIGINT)
    assert_nothing_left(folder, pids, shared)
    print("ok driver stopped and woken up: both are told")


def a_store_is_stopped(folder, job, shared):
    run, pids = start(folder, job)
    os.kill(of(pids, "activation-store")[-1], signal.SIGSTOP)
    begin = time.monotonic()
    run.end(130, signal.SIGINT)
    ended_soon(run, begin, "Ctrl-C beside a stopped store")
    assert_nothing_left(folder, pids, shared)


def the_terminal_is_closed(folder, job, shared):
    """The shell and the kernel send a SIGHUP each."""
    kept = os.path.join(folder, "closed")
    run, pids = start(folder, job, "--set", f"checkpoint.folder={kept}", "--set", "train.micro_batches=256")
    run.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "stopping after this step" in run.log(), 60, "SIGHUP was not noticed")
    run.process.send_signal(signal.SIGHUP)
    message = run.end(130)
    last = run.steps()[-1]["step"]
    assert f"--resume continues from step {last}" in message, message[-3000:]
    assert_nothing_left(folder, pids, shared)
    print(f"ok SIGHUP twice: the checkpoint of step {last} was written")


def ballastctl_is_killed(folder, job, shared):
    keep = ("--set", f"checkpoint.folder={os.path.join(folder, 'killed')}")
    run, pids = start(folder, job, *keep)
    services, driver = of(pids, "stage-service"), of(pids, "ballast-driver")
    log = os.readlink(f"/proc/{driver[0]}/fd/2")
    run.kill()
    wait_until(lambda: not any(alive(pid) for pid in services), 60, "stages outlive a killed ballastctl")
    wait_until(lambda: not any(alive(pid) for pid in driver), 60, "the driver outlives a killed ballastctl")
    with open(log) as file:  # at once: it does not first find out that its stages are gone, and keep the folder until then
        assert "ending: the process that started this one is gone, and with it the stages" in file.read()
    wait_until(lambda: not any(alive(pid) for pid in pids), 60, "children outlive a killed ballastctl")
    assert not shared_memory_files() - shared
    run_job(folder, job, "--local", *keep, "--steps", "1")
    print("ok ballastctl killed: no orphans, and its folder is free")


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
        the_driver_is_killed_while_it_stops(folder, job, shared)
        the_driver_is_stopped(folder, job, shared)
        a_store_is_stopped(folder, job, shared)
        the_terminal_is_closed(folder, job, shared)
        ballastctl_is_killed(folder, job, shared)


main()
