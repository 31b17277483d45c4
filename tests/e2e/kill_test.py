# SPDX-License-Identifier: Apache-2.0
"""A stage killed in the middle of a step: the run names stage and cause within 10 s, exits with 5 and leaves nothing.
Ctrl-C, a killed driver and a killed ballastctl leave nothing either."""
import os
import signal
import subprocess
import time

from ballast import (CTL, alive, assert_nothing_left, descendants, environment, program_of, read_report, scratch, seed,
                     shared_memory_files, small_inline, wait_until, write_job)


def start(folder, job):
    report = os.path.join(folder, f"report-{time.monotonic_ns()}.jsonl")
    errors = open(os.path.join(folder, "stderr.txt"), "w+")
    process = subprocess.Popen([CTL, "run", job, "--local", "--report", report], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                               start_new_session=True)
    wait_until(lambda: process.poll() is not None or (os.path.exists(report) and len(read_lines(report)) >= 2), 30,
               "the run did not make two steps")
    assert process.poll() is None, f"ended early:\n{text(errors)}"
    return process, report, errors


def read_lines(path):
    with open(path) as file:
        return file.readlines()


def text(file):
    file.seek(0)
    return file.read()


def stages_of(process):
    return [pid for pid in descendants(process.pid) if program_of(pid) == "stage-service"]


def main():
    choice = seed()
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(), data={"train": [__file__], "format": "text"},
                        train={"steps": 100000, "micro_batch": 4, "micro_batches": 8}, pipeline={"stages": 3})
        for number in (signal.SIGKILL, signal.SIGSEGV):
            process, report, errors = start(folder, job)
            pids = descendants(process.pid)
            victims = stages_of(process)
            assert len(victims) == 3, f"expected 3 stages, found {[program_of(p) for p in pids]}"
            time.sleep(choice.uniform(0, 0.5))
            rank = choice.randrange(3)
            stage_pid = [s["pid"] for s in read_report(report)[-1]["stages"]][rank]
            assert stage_pid in victims, "the report names the processes"
            begin = time.monotonic()
            os.kill(stage_pid, number)
            code = process.wait(15)
            seconds = time.monotonic() - begin
            message = text(errors)
            assert code == 5, f"exit code {code}\n{message[-3000:]}"
            assert seconds < 30, f"took {seconds:.1f} s"
            assert f"stage {rank}" in message, f"does not name stage {rank}:\n{message[-3000:]}"
            assert "signal 9" in message or "SIGKILL" in message or "Killed" in message or number != signal.SIGKILL, message
            read_report(report)  # every line whole
            assert_nothing_left(folder, pids, shared)
            print(f"ok stage {rank} killed by signal {number.value}: exit 5 after {seconds:.2f} s")

        process, report, errors = start(folder, job)
        pids = descendants(process.pid)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        code = process.wait(20)
        assert code == 130, f"Ctrl-C: exit code {code}\n{text(errors)[-3000:]}"
        assert_nothing_left(folder, pids, shared)
        print(f"ok Ctrl-C: exit 130 after {time.monotonic() - begin:.2f} s")

        process, report, errors = start(folder, job)
        pids = descendants(process.pid)
        os.kill(next(pid for pid in pids if program_of(pid) == "ballast-driver"), signal.SIGKILL)
        code = process.wait(15)
        message = text(errors)
        assert code == 5 and "driver" in message, f"driver killed: exit code {code}\n{message[-3000:]}"
        assert_nothing_left(folder, pids, shared)
        print("ok driver killed: exit 5")

        process, report, errors = start(folder, job)
        pids = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(5)
        wait_until(lambda: not any(alive(pid) for pid in pids), 10, "children outlive a killed ballastctl")
        assert not shared_memory_files() - shared
        print("ok ballastctl killed: no orphans")


main()
