# SPDX-License-Identifier: Apache-2.0
"""Evicted blocks go to stores by NCCL and come back, beside tensors of the same processes (a device that is not there,
tests/late, and an NCCL between processes without one, tests/fake_gpu): the losses of a run on the host without eviction, also
when a store is killed or stops in the middle of a transfer. Where NCCL is required and a store cannot be reached by it, the
run is refused with the reason."""
import os
import signal

from ballast import ON_DEVICE, Run, Service, losses, on_late_device, run_job, stages, stages_of, write_job

REQUIRED = (*ON_DEVICE, "--set", "balance.require=nccl")
LOCAL = ("--local", "--nccl-shared-gpu", "-v")
STAGES = 4


def job_of(folder, name, steps, **more):
    return write_job(folder, name=name, train={"steps": steps, "micro_batch": 1, "micro_batches": 8},
                     model={"init": None, "family": "gpt2", "layers": STAGES, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32},
                     pipeline={"stages": STAGES}, balance={"policy": "bpipe"}, **more)


def same_bits(folder):
    job = job_of(folder, "bits.yaml", 3)
    expected, _ = run_job(folder, job, "--local", "--set", "balance.policy=none")
    report, done = run_job(folder, job, *LOCAL, *REQUIRED)
    assert losses(report) == losses(expected), f"{losses(report)}\n {losses(expected)}"
    assert sum(stage["evicted"] for stage in stages_of(report)) > 0, report[-1]
    assert all(stage["recomputed"] == 0 for stage in stages_of(report)), report[-1]
    chosen = [line for line in done.stderr.splitlines() if "blocks to the store of device" in line]
    assert chosen and all(line.endswith(": nccl: asked for") for line in chosen), done.stderr[-3000:]
    print(f"ok blocks by NCCL to {len(chosen)} stores: the same bits")


def disturbed(folder, job, disturb):
    """The steps of a run whose store of device 3 is disturbed once it has blocks: until some were made again, or a dozen
    steps have passed, and a few steps more. How many were made again."""
    run = Run(folder, job, *LOCAL, *REQUIRED)
    try:
        steps = run.wait_for(lambda steps: any(stage["loaded"] for stage in stages_of(steps)), "no step that parks blocks")
        disturb(steps[-1]["stores"][3]["pid"])
        most = len(steps) + 12
        steps = run.wait_for(lambda steps: len(steps) > most or any(stage["recomputed"] for stage in stages_of(steps)), "no step")
        run.wait_for(lambda now: len(now) > len(steps) + 2, "it did not go on")
    finally:
        run.end(130, signal.SIGINT)
    steps = run.steps()
    for stage in stages_of(steps):
        assert stage["recomputed"] == stage["lost"] + stage["dropped"], stage
    return steps, sum(stage["recomputed"] for stage in stages_of(steps))


def faults(folder):
    job = job_of(folder, "faults.yaml", 1000000)
    planted = os.environ["LATE_NCCL_FAULTS"] = os.path.join(folder, "planted")
    os.mkdir(planted)
    for what, disturb in (("killed", lambda pid: os.kill(pid, signal.SIGKILL)),
                          ("stalled", lambda pid: open(os.path.join(planted, f"{pid}.stall"), "w").close())):
        again, tries = 0, []
        while again == 0 and len(tries) < 20:  # it may have held nothing at that moment
            steps, again = disturbed(folder, job, disturb)
            tries.append(losses(steps))
        most = max(map(len, tries))
        report, _ = run_job(folder, job, "--local", "--steps", str(most), "--set", "balance.policy=none", "--set",
                            "pipeline.stages=1", timeout=300)
        expected = losses(report)
        assert all(made == expected[:len(made)] for made in tries), f"{what}: {tries}\n {expected}"
        assert again > 0, f"{len(tries)} stores were {what} and no block was made again"
        print(f"ok a store is {what} in the middle: {again} blocks made again in {len(steps)} steps, the same bits")
    assert not os.listdir(planted), "the store did not stop"
    del os.environ["LATE_NCCL_FAULTS"]


def refusals(folder):
    _, done = run_job(folder, job_of(folder, "host.yaml", 2), "--local", "--set", "balance.require=nccl", expect=2)
    assert "it needs pipeline.device cuda" in done.stderr, done.stderr
    with stages(folder, STAGES, prefixes=[((), "127.0.0.1:0", "--nccl-shared-gpu")] * STAGES) as services:
        stores = [Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64 MiB", "--drain", "0")
                  for _ in range(STAGES)]
        try:
            both = {"stages": [s.address for s in services], "stores": [s.address for s in stores]}
            _, done = run_job(folder, job_of(folder, "refused.yaml", 2, services=both), *REQUIRED, expect=4)
            assert "nccl was asked for: memory of the store is the host's" in done.stderr, done.stderr
        finally:
            for store in stores:
                store.end()
    print("ok refusals")


on_late_device(same_bits, faults, refusals)
