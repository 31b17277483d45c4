# SPDX-License-Identifier: Apache-2.0
"""A driver that is killed at random points and started again goes on with the same losses, while the command that
watches it reconnects and its report has every committed step once. Stages are separate services that live on; a grid of
ranks as well. BALLAST_TEST_KILLS sets how often (default 6)."""
import os
import signal
import subprocess
import time

from ballast import CTL, Service, environment, losses, read_report, run_job, scratch, seed, stages, wait_until, write_job


def start_driver(folder, job, address):
    return Service(folder, "ballast-driver", "--job", job, "--listen", address, "--linger")


def restarts(folder, choice, kills, ranks, **more):
    steps = 100 + 60 * kills
    train = {"steps": steps, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3, "clip": 1.0}
    reference, _ = run_job(folder, write_job(folder, train=train, **more), "--local")
    with stages(folder, ranks) as services:
        address = f"unix:{folder}/driver.sock"
        job = write_job(folder, train=train, services={"stages": [s.address for s in services], "driver": address}, **more)
        report = os.path.join(folder, "interrupted.jsonl")
        errors = open(os.path.join(folder, "stderr.txt"), "w+")
        driver = start_driver(folder, job, address)
        control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 120, "no step was recorded")
            for _ in range(kills):
                time.sleep(choice.uniform(0.0, 0.4))
                driver.kill(signal.SIGKILL)
                driver = start_driver(folder, job, address)
            code = control.wait(120)
            errors.seek(0)
            assert code == 0, f"exit code {code}\n{errors.read()[-4000:]}\n{driver.log()[-4000:]}"
        finally:
            if control.poll() is None:
                control.kill()
            driver.end()
        got = read_report(report)
        at = max(i for i, event in enumerate(got) if event["event"] == "step")
        assert losses(got) == losses(reference), "the report of an interrupted run differs"
        print(f"ok {ranks} ranks, {kills} kills, {steps} steps, last loss {got[at]['loss']:.6f}")
        for service in services:
            assert service.process.poll() is None, "stages live on"


def main():
    choice = seed()
    kills = int(os.environ.get("BALLAST_TEST_KILLS", "6"))
    with scratch() as folder:
        restarts(folder, choice, kills, 2)
    with scratch() as folder:  # two replicas of two tensor ranks
        restarts(folder, choice, max(1, (kills + 2) // 6), 4, pipeline={"stages": 1}, parallel={"tensor": 2, "data": 2})


main()
