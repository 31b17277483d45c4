# SPDX-License-Identifier: Apache-2.0
"""What is far beyond the machine is said where the machine is known: more threads than processors by a local run and by the
stage, more memory than there is by the store. A job that is only looked at says nothing of the machine it is looked at on."""
import os
import subprocess

from ballast import CTL, Service, environment, run_job, scratch, stages, write_job

MANY = "pipeline.threads: 5 threads of a stage would take turns on the 1 processor here"


def check_threads(folder):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of all that is started from here
    job = write_job(folder, train={"steps": 1}, pipeline={"threads": 5})
    _, done = run_job(folder, job, "--local")
    assert done.stderr.count(f"warning: {MANY}") == 1, done.stderr
    for arguments, told in ((["--local"], True), (["--local", "--set", "pipeline.threads=4"], False),
                            (["--set", 'services.stages=["10.0.0.1:1", "10.0.0.2:1"]'], False)):
        done = subprocess.run([CTL, "run", job, "--check", *arguments], env=environment(folder), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode == 0 and (MANY in done.stderr) == told, (arguments, done)
    with stages(folder, 2) as services:
        run_job(folder, write_job(folder, train={"steps": 1}, pipeline={"threads": 5},
                                  services={"stages": [service.address for service in services]}))
        for service in services:
            assert service.log().count(MANY) == 1, service.log()
    print("ok more threads than processors are doubted by a local run and by stages")


def check_memory(folder):
    for capacity, told in (("99 PiB", True), ("64 MiB", False)):
        store = Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", capacity)
        store.end()
        assert ("--capacity: 99.0 PiB are to be lent, and this process can have " in store.log()) == told, store.log()
    print("ok more memory than there is is doubted by a store")


def main():
    with scratch() as folder:
        check_memory(folder)
        check_threads(folder)


main()
