# SPDX-License-Identifier: Apache-2.0
"""Four stages that take turns on one core, on two, and on as many as they like, have the same bits; on one core their
operations do not overlap; a stage that is killed while others wait for its core ends the run as always."""
import os
import signal
import subprocess

from ballast import (CTL, assert_nothing_left, descendants, environment, losses, program_of, read_report, run_job, scratch,
                     shared_memory_files, wait_until, write_job)

MODEL = {"init": None, "family": "gpt2", "layers": 4, "hidden": 64, "heads": 2, "vocab": 128, "seq": 64}


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        def job(cores, steps=3):
            return write_job(folder, model=MODEL, data={"train": [__file__], "format": "text"},
                             train={"steps": steps, "micro_batch": 1, "micro_batches": 6},
                             pipeline={"stages": 4, "cores": cores})

        reference = None
        for cores in (1, 2, 64, None):
            report, _ = run_job(folder, job(cores), "--local")
            reference = reference or losses(report)
            assert losses(report) == reference, f"{cores} cores"
            for event in report:
                busy = sum(stage["busy_seconds"] for stage in event.get("stages", []))
                # Squares and tied gradients at the end of a step take no turns: room for them, and for clocks.
                assert cores != 1 or busy < 1.5 * event["seconds"], event
            print(f"ok cores: {cores or 'as many as the machine has'}")

        report = os.path.join(folder, "killed.jsonl")
        run = subprocess.Popen([CTL, "run", job(1, 100000), "--local", "--report", report], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was made")
        pids = descendants(run.pid)
        os.kill(next(pid for pid in pids if program_of(pid) == "stage-service"), signal.SIGKILL)
        assert run.wait(60) == 5, run.stderr.read()
        run.stderr.close()
        read_report(report)
        assert_nothing_left(folder, pids, shared)
        print("ok a killed stage")


main()
