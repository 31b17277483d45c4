# SPDX-License-Identifier: Apache-2.0
"""Stage services that were started by hand and are used again and again: by one run after the other, by a job that
names one of them twice, by a second job while they run one, after a run that could not connect its stages, and while one of them is stopped."""
import os
import signal
import subprocess
import time

from ballast import (CTL, Service, environment, losses, on, run_job, scratch, small_inline, stages, wait_until,
                     write_job)


def again_and_again(folder, job, services):
    expected = losses(run_job(folder, job, "--local")[0])
    for order in (services, services, list(reversed(services))):
        got = losses(run_job(folder, job, *on(order))[0])
        assert got == expected, f"separate services: {got}\n--local: {expected}"


def from_elsewhere(folder, job, services):
    """The run-time folder of the services goes with the last run in it; the next run has another one."""
    elsewhere = os.path.join(folder, "elsewhere")
    os.mkdir(elsewhere, 0o700)
    expected = losses(run_job(folder, job, "--local")[0])
    assert losses(run_job(elsewhere, job, *on(services))[0]) == expected


def one_service_twice(folder, job, services):
    address = services[0].address
    _, done = run_job(folder, job, *on([address, address]), "--check", expect=2)
    assert f"services.stages: names {address} twice" in done.stderr, done.stderr
    _, done = run_job(folder, job, *on([address, address.replace("127.0.0.1:", "localhost:")]), expect=2)
    assert "are one process" in done.stderr and address in done.stderr, done.stderr


def one_taken_for_a_store(folder, services):
    """What it is is told, not only that it lacks a method; so are an address that is given twice, and a run that is asked
    of a stage."""
    address = services[0].address
    for words, message in ((("stores", "--store", address),
                            f"{address}: a stage-service answers here, not an activation-store: correct the address"),
                           (("stores", "--store", address, "--store", address), f"--store names {address} twice"),
                           (("status", "--endpoint", address), "a stage-service answers here, not a ballast-driver")):
        done = subprocess.run([CTL, *words], env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 2 and message in done.stderr, (words, done.returncode, done.stdout, done.stderr)


def after_a_connect_that_hangs(folder, job):
    """Stage 1 waits for a connection that cannot come. The next run does not wait for that to end."""
    unreachable = ((), "127.0.0.1:0", "--data-listen", "127.0.0.2", "--data-advertise", "127.0.0.3")
    with stages(folder, 2, prefixes=[unreachable, unreachable]) as (first, last):
        stuck = subprocess.Popen([CTL, "run", job, *on([first, last]), "--set", "balance.data_path=tcp"],
                                 env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True)
        wait_until(lambda: "configured" in last.log(), 120, "stage 1 was not configured")
        time.sleep(0.5)  # the connection that cannot be made is tried for 30 s; any moment of them will do
        stuck.send_signal(signal.SIGINT)
        code, message = stuck.wait(120), stuck.stderr.read()
        assert code == 130, f"exit code {code}\n{message}"
        begin = time.monotonic()
        run_job(folder, job, *on([first, last]))
        seconds = time.monotonic() - begin
        assert seconds < 30, f"the next run took {seconds:.1f} s"


def text_of(path):
    with open(path) as file:
        return file.read()


def a_stopped_stage(folder, services):
    """SIGSTOP: the process is there and its connections stand, but it is named: after 8 s where nothing else runs."""
    job = write_job(folder, "long.yaml", model=small_inline(), data={"train": [__file__], "format": "text"},
                    train={"steps": 100000})
    report, errors = os.path.join(folder, "stopped.jsonl"), os.path.join(folder, "stopped.txt")
    with open(errors, "w") as file:
        run = subprocess.Popen([CTL, "run", job, "--report", report, *on(services)], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file)
    wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 120, "the run did not make a step")
    os.kill(services[1].pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "is gone" in text_of(errors), 120, "the stopped stage was not named")
        code = run.wait(120)
    finally:
        os.kill(services[1].pid, signal.SIGCONT)
    message = text_of(errors)
    assert code == 5 and "stage 1" in message and services[1].address in message, f"exit code {code}\n{message}"


def a_late_stage(folder, job):
    """What a run waits for is told before its first step; it goes on once the stage is there."""
    late, errors = f"unix:{folder}/late.sock", os.path.join(folder, "late.txt")
    with stages(folder, 1) as services:
        both = f'services.stages=["{services[0].address}", "{late}"]'
        with open(errors, "w") as file:
            run = subprocess.Popen([CTL, "run", job, "--set", both], env=environment(folder), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=file)
        wait_until(lambda: "waiting for stage 1" in text_of(errors) or run.poll() is not None, 60, "nothing was told")
        stage = Service(folder, "stage-service", "--listen", late)
        code = run.wait(120)
        stage.end()
    assert code == 0, f"exit code {code}\n{text_of(errors)}"


def a_second_job(folder, services):
    """Stages that run a job for a driver that is alive are not taken over for another one: that is refused by name."""
    long = write_job(folder, "first.yaml", model=small_inline(), data={"train": [__file__], "format": "text"},
                     train={"steps": 100000})
    other = write_job(folder, "other.yaml", train={"steps": 2})
    report, errors = os.path.join(folder, "first.jsonl"), os.path.join(folder, "first.txt")
    with open(errors, "w") as file:
        run = subprocess.Popen([CTL, "run", long, "--set", "name=first", "--report", report, *on(services)], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file)
    try:
        wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "the run did not make a step")
        _, done = run_job(folder, other, *on(services), expect=4)
        assert "is busy with run 'first', driven from" in done.stderr, done.stderr
        before = os.path.getsize(report)
        wait_until(lambda: os.path.getsize(report) > before or run.poll() is not None, 60, "the first run stands still")
    finally:
        run.send_signal(signal.SIGINT)
        code = run.wait(120)
    assert code == 130, f"exit code {code}\n{text_of(errors)}"
    run_job(folder, other, *on(services))  # they are free now


def main():
    with scratch() as folder:
        job = write_job(folder)
        a_late_stage(folder, job)
        with stages(folder, 2) as services:
            again_and_again(folder, job, services)
            from_elsewhere(folder, job, services)
            one_service_twice(folder, job, services)
            one_taken_for_a_store(folder, services)
            again_and_again(folder, job, services)
            a_second_job(folder, services)
            a_stopped_stage(folder, services)
            again_and_again(folder, job, services)
        after_a_connect_that_hangs(folder, job)


if __name__ == "__main__":
    main()
