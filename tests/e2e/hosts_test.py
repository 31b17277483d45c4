# SPDX-License-Identifier: Apache-2.0
"""Four hosts, a stage and a store on each, on links of 400 Mbit/s: the run parks blocks at stores of other hosts over tcp
and gives the bits of a local run; host 2 is cut off for a while, comes back, and the run goes on with the same bits.
Skipped where network namespaces cannot be made."""
import os
import subprocess
import time

from ballast import CTL, Service, environment, losses, read_report, run_job, scratch, small_inline, steps_so_far, \
    wait_until, write_job
from hosts import Hosts

STAGES, STEPS = 4, 60


def job_of(folder, name, **services):
    return write_job(folder, name, model=small_inline(hidden=64, layers=STAGES, seq=64),
                     train={"steps": STEPS, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": STAGES},
                     memory={"slots": 3}, balance={"policy": "bpipe"}, **services)


def reported(path):
    return len(steps_so_far(path))


def main():
    with scratch() as folder, Hosts(STAGES) as hosts:
        reference, _ = run_job(folder, job_of(folder, "local.yaml"), "--local")
        limited = all([hosts.limit(i, "400mbit") for i in range(STAGES)])
        services = []
        try:
            for i in range(STAGES):
                at = hosts.address(i)
                services.append(Service(folder, "stage-service", "--plaintext", "--listen", f"{at}:7700",
                                        prefix=hosts.prefix(i)))
                services.append(Service(folder, "activation-store", "--plaintext", "--listen", f"{at}:7800", "--data-listen",
                                        f"unix:{folder}/store-{i}.data", "--capacity", "64 MiB", "--drain", "0",
                                        prefix=hosts.prefix(i)))
            job = job_of(folder, "job.yaml", services={
                "stages": [f"{hosts.address(i)}:7700" for i in range(STAGES)],
                "stores": [f"{hosts.address(i)}:7800" for i in range(STAGES)], "driver": f"{hosts.address(0)}:7600",
                "plaintext": True})
            report = os.path.join(folder, "report.jsonl")
            driver = Service(folder, "ballast-driver", "--plaintext", "--listen", f"{hosts.address(0)}:7600", "--job", job,
                             "--linger", prefix=hosts.prefix(0))
            services.append(driver)
            with open(os.path.join(folder, "client.log"), "w") as log:
                client = subprocess.Popen([*hosts.prefix(0), CTL, "run", job, "--plaintext", "--report", report],
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(folder))
            try:
                wait_until(lambda: reported(report) >= 5, 120, "five steps were not taken")
                hosts.cut(2)
                time.sleep(3)  # as long as it is away, not something to be done by then
                away = reported(report)
                hosts.mend(2)
                code = client.wait(180)
            finally:
                client.kill()
                client.wait()
            with open(os.path.join(folder, "client.log")) as log:
                assert code == 0, f"exit code {code}\n{log.read()[-3000:]}\n{driver.log()[-3000:]}"
            steps = [event for event in read_report(report) if event["event"] == "step"]
            assert losses(read_report(report)) == losses(reference), "four hosts give other bits than one"
            assert away < STEPS, f"the run had ended ({away} steps) before the host was back"
            assert sum(stage["evicted"] for step in steps for stage in step["stages"]) > 0, "nothing was parked"
            print(f"ok {STEPS} steps on four hosts ({'400 Mbit/s' if limited else 'links not limited: no tbf'}), host 2 away "
                  f"at step {away}: the bits of one")
        finally:
            for service in reversed(services):
                service.kill()


main()
