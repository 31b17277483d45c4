# SPDX-License-Identifier: Apache-2.0
"""Stages whose tensors go by NCCL (the device of tests/late, the NCCL of tests/fake_gpu) when something of it fails: a
transfer that stands still costs one attempt and the communicators of that pair, and nobody else's; a stage killed in the
middle of a send ends the run with the cause, other pairs stay as they are, and it goes on from its checkpoint."""
import os
import re

from ballast import (ON_DEVICE, Run, losses, on, on_late_device, read_report, run_job, small_inline, stages, wait_until,
                     write_job)

NCCL = (*ON_DEVICE, "--set", "balance.data_path=nccl")
CHOSEN = "nccl: both ends have NCCL 2.28.9"


def reach(run, count):
    run.wait_for(lambda steps: len(steps) >= count, f"step {count}")


def plant(faults, service, what):
    open(os.path.join(faults, f"{service.pid}.{what}"), "w").close()


def standing_still(folder, faults, services):
    job = write_job(folder, "long.yaml", model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 24, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4})
    expected, _ = run_job(folder, job, "--local")
    run = Run(folder, job, *NCCL, *on(services))
    reach(run, 3)
    plant(faults, services[1], "stall")
    run.end(0)
    assert losses(read_report(run.report)) == losses(expected), "other bits after a transfer stood still"
    assert not os.listdir(faults), "no transfer stood still"
    again = [len(re.findall(f"{CHOSEN}.*created again", service.log())) for service in services]
    causes = [service.log() for service in services if "was not over after" in service.log()]
    words = "\n".join(service.log()[-3000:] for service in services)
    pair = r"NCCL, stage (1 to stage [02]|[02] to stage 1): a transfer of "
    assert causes and all(re.search(pair, log) for log in causes), words
    assert sum(again) == 2 and again[1] == 1 and again[3] == 0, f"stage 1 and one neighbour: {again}\n{words}"
    print(f"ok a transfer that stands still: communicators made again by stages {[i for i in range(4) if again[i]]}")


def killed(folder, faults, services):
    job = write_job(folder, "kept.yaml", model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 20, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4},
                    checkpoint={"folder": os.path.join(folder, "kept"), "every": 2})
    expected, _ = run_job(folder, job, "--local", "--set", "checkpoint.folder=null", "--set", "checkpoint.every=0")
    run = Run(folder, job, *NCCL, *on(services))
    reach(run, 5)
    before = [len(service.log()) for service in services]
    plant(faults, services[1], "kill")
    words = run.end(5)
    assert "stage 1" in words and services[1].address in words, words
    assert services[1].process.wait(60) == -9
    for i, name in ((0, "stage 1"), (2, "stage 1")):  # its neighbours know at once, and why
        wait_until(lambda: f"link to {name} ended: {name} closed the connection" in services[i].log()[before[i]:], 60,
                   services[i].log())
    assert "link to stage 2" not in services[3].log()[before[3]:], "the pair of stages 2 and 3 was disturbed"
    os.unlink(os.path.join(folder, "ballast", f"stage-{services[1].pid}.data"))  # nobody else can
    committed = read_report(run.report)
    services[1].__init__(folder, "stage-service", "--listen", services[1].address, "--nccl-shared-gpu")
    rest = Run(folder, job, *NCCL, *on(services), "--resume")
    rest.end(0)
    bits = [(event["loss"].hex(), event["grad_norm"].hex()) for event in read_report(rest.report) if event["event"] == "step"]
    assert bits == losses(expected)[-len(bits):], "other bits after the run went on"
    assert losses(committed) == losses(expected)[:len(losses(committed))]
    print(f"ok a stage killed in the middle of a send: exit 5, gone on with {len(bits)} steps to go")


def faulty(folder):
    faults = os.environ["LATE_NCCL_FAULTS"] = os.path.join(folder, "faults")
    os.mkdir(faults)
    with stages(folder, 4, prefixes=[((), "127.0.0.1:0", "--nccl-shared-gpu")] * 4) as services:
        standing_still(folder, faults, services)
        killed(folder, faults, services)


on_late_device(faulty)
