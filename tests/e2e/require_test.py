# SPDX-License-Identifier: Apache-2.0
"""balance.require: a run whose blocks would not take the path that is required does not begin. The stage that parks them
says that it is not ready, while it lives and while stages that park nothing are ready; the driver waits and names path and
store. Once the path is there all go on by themselves to the bits of a local run. A path that is there is just used; one
that contradicts balance.data_path is refused. Also: stages and driver log as JSON with run, stage, step and attempt, and
stages say which pod they are."""
import json
import os
import signal
import threading

from ballast import Service, losses, run_job, scratch, small_inline, stages, wait_until, write_job

STAGES = 4


def job_of(folder, **more):
    # The name of the job is that of the run in logs.
    balance = {"policy": "bpipe", **more.pop("balance", {})}
    return write_job(folder, name="job.yaml", model=small_inline(hidden=32, layers=STAGES, seq=32),
                     train={"steps": 4, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": STAGES},
                     memory={"slots": 3}, balance=balance, **more)


def start_store(folder, listen, *more):
    return Service(folder, "activation-store", "--listen", listen, "--capacity", "64 MiB", "--drain", "0", *more)


def wait_for_path(folder, services, job, give):
    """The run waits until give() makes the path; its report."""
    result = []
    run = threading.Thread(target=lambda: result.append(
        run_job(folder, job, "--set", "balance.require=shm", "--set", "name=named", timeout=300)))
    run.start()
    try:
        wait_until(lambda: not services[0].serves("ballast.v1.Stage"), 120, "stage 0 is ready without its path")
        assert services[0].serves(), "a stage that is not ready must be alive"
        assert services[2].serves("ballast.v1.Stage"), "a stage that parks nothing is not ready"
        wait_until(lambda: "balance.require is shm" in services[0].log(), 60, services[0].log())
    finally:
        give()
        run.join(300)
    assert result, "the run did not go on"
    return result[0][0]


def main():
    with scratch() as folder:
        reference, _ = run_job(folder, job_of(folder), "--local")
        health_at = ("--health-listen", "127.0.0.1:0", "--log-format", "json")
        prefixes = [(("env", f"POD_NAME=run-stage-{pod}"), "127.0.0.1:0", *health_at) for pod in (0, 2, 3, 1)]
        with stages(folder, STAGES, prefixes=prefixes) as services:
            # Shared memory of stores 2 and 3 is where nobody can find it.
            lost = os.path.join(folder, "lost")
            stores = [start_store(folder, "127.0.0.1:0", "--data-listen", f"unix:{folder}/data-{i}") for i in range(STAGES)]
            try:
                os.mkdir(lost)
                for i in (2, 3):
                    os.rename(f"{folder}/data-{i}", f"{lost}/{i}")
                both = {"stages": [s.address for s in services], "stores": [s.address for s in stores]}
                job = job_of(folder, services=both)

                def give():
                    for i in (2, 3):
                        os.rename(f"{lost}/{i}", f"{folder}/data-{i}")

                report = wait_for_path(folder, services, job, give)
                assert losses(report) == losses(reference), "with a required path: other bits"
                assert sum(stage["lost"] + stage["dropped"] for step in report for stage in step.get("stages", [])) == 0
                assert all(s.serves("ballast.v1.Stage") for s in services)
                print("ok a run waits, unready, for the path that it requires, and goes on once it is there")

                run_job(folder, job, "--set", "balance.require=tcp")
                run_job(folder, job, "--set", "balance.require=shm", "--set", "balance.data_path=shm")
                done = run_job(folder, job, "--set", "balance.require=shm", "--set", "balance.data_path=tcp", expect=2)[1]
                assert "balance.require: is shm, balance.data_path asks for tcp" in done.stderr, done.stderr
                print("ok other paths that are there, and one that cannot be")

                for number, service in enumerate(services):
                    lines = [json.loads(line) for line in service.log().splitlines()]
                    assert any(line.get("stage") == number and line.get("run") == "named" and line.get("step") == 4 and
                               line.get("attempt", 0) >= 4 for line in lines), lines[-8:]
                    pod = (0, 2, 3, 1)[number]
                    said = [line["message"] for line in lines if line["message"].startswith(f"pod {pod} of 4")]
                    assert said and f"is stage {number}; its partner, stage {3 - number}," in said[0], (number, lines[:8])
                print("ok stages say which pod they are, and log with run, stage, step and attempt")
            finally:
                for store in stores:
                    store.kill(signal.SIGKILL)


main()
