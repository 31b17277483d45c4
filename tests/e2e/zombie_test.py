# SPDX-License-Identifier: Apache-2.0
"""A driver that was stopped (SIGSTOP) and wakes up while its successor drives is fenced: it ends with exit code 4 and
changes nothing. The successor's losses are those of an undisturbed run. BALLAST_TEST_ZOMBIES sets how often (default 2)."""
import os
import signal
import subprocess
import time

from ballast import CTL, Service, environment, losses, read_report, run_job, scratch, seed, stages, wait_until, write_job


def main():
    choice = seed()
    with scratch() as folder:
        train = {"steps": 300, "micro_batch": 2, "micro_batches": 4, "lr": 1e-3, "clip": 1.0}
        reference, _ = run_job(folder, write_job(folder, train=train), "--local")
        expected = dict(enumerate(losses(reference), start=1))
        for number in range(int(os.environ.get("BALLAST_TEST_ZOMBIES", "2"))):
            one_zombie(folder, train, expected, choice, number)


def one_zombie(folder, train, expected, choice, number):
    with stages(folder, 2) as services:
        job = write_job(folder, train=train, services={"stages": [service.address for service in services]})
        zombie = Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0")
        report = os.path.join(folder, f"zombie-{number}.jsonl")
        try:
            # One that is stopped before it has taken over is no zombie: it wakes up as the newest driver.
            wait_until(lambda: all("following driver" in service.log() for service in services), 120, "no takeover")
            time.sleep(choice.uniform(0.0, 0.4))
            zombie.process.send_signal(signal.SIGSTOP)
            successor = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder), text=True,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            # One that wakes up before somebody follows its successor may finish the run on a busy machine.
            wait_until(lambda: any(service.log().count("following driver") > 1 for service in services), 120,
                       "no successor")
            time.sleep(choice.uniform(0.0, 0.4))
            zombie.process.send_signal(signal.SIGCONT)
            errors = successor.communicate(timeout=240)[1]
            assert successor.returncode == 0, f"the successor ended with {successor.returncode}\n{errors[-3000:]}"
            code = zombie.process.wait(120)
            assert code == 4, f"the zombie ended with {code}, expected 4 (fenced)\n{zombie.log()[-3000:]}"
        finally:
            zombie.process.send_signal(signal.SIGCONT)
            zombie.end()
        told = {event["step"]: (event["loss"].hex(), event["grad_norm"].hex())
                for event in read_report(report) if event["event"] == "step"}
        wrong = [step for step, numbers in told.items() if expected[step] != numbers]
        assert max(told) == train["steps"] and not wrong, f"steps that differ: {wrong}"
        print(f"ok successor from step {min(told)}, the zombie is fenced")


main()
