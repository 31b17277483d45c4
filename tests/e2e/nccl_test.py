# SPDX-License-Identifier: Apache-2.0
"""Tensors between stages go by NCCL, from device to device (a device that is not there, tests/late, and an NCCL between
processes without one, tests/fake_gpu): the same bits as on the host for two, three and four stages. Two versions, a shared
GPU and no NCCL at all are refused where nccl is asked for, and passed by else, with the reason."""
import os

from ballast import ON_DEVICE, losses, on, on_late_device, run_job, stages, write_job

NCCL = (*ON_DEVICE, "--set", "balance.data_path=nccl")
LOCAL = ("--local", "--nccl-shared-gpu", "-v")
CHOSEN = "nccl: both ends have NCCL 2.28.9"


def same_bits(folder):
    inline = {"init": None, "family": "gpt2", "layers": 8, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    train = {"steps": 3, "micro_batch": 1, "micro_batches": 8, "validate_every": 2}
    for count, schedule, pairs in ((2, "1f1b", 1), (4, "interleaved", 4), (2, "zb-v", 1), (3, "gpipe", 3)):
        job = write_job(folder, model=inline, train=train, data={"validation": 0.1},
                        pipeline={"stages": count, "schedule": schedule})
        expected, _ = run_job(folder, job, "--local")
        report, done = run_job(folder, job, *LOCAL, *NCCL)
        assert losses(report) == losses(expected), f"{schedule}:\n {losses(report)}\n {losses(expected)}"
        chosen = done.stderr.count(CHOSEN)  # each end of each pair that exchanges something, tied gradients too
        assert chosen >= 2 * pairs, f"{schedule}: {chosen}\n{done.stderr[-3000:]}"
        print(f"ok {count} stages, {schedule}: {pairs} pairs, the same bits")
    os.environ["LATE_CLOSED"] = "1"
    _, done = run_job(folder, job, *LOCAL, *ON_DEVICE)
    del os.environ["LATE_CLOSED"]
    assert CHOSEN in done.stderr, "auto does not take nccl where memory cannot be handed out"
    assert "credits by shm: same machine; not cuda-ipc: what is not there keeps its memory" in done.stderr, done.stderr
    _, done = run_job(folder, job, *LOCAL, *ON_DEVICE, "--set", "balance.data_path=tcp")
    assert CHOSEN not in done.stderr and "nccl" not in done.stderr, done.stderr[-3000:]


def versions(folder):
    job = write_job(folder)
    expected, _ = run_job(folder, job, "--local")
    shared = "--nccl-shared-gpu"
    prefixes = [((), "127.0.0.1:0", shared), (("env", "FAKE_NCCL_VERSION=22703"), "127.0.0.1:0", shared)]
    with stages(folder, 2, prefixes=prefixes) as services:
        _, done = run_job(folder, job, *on(services), *NCCL, expect=4)
        words = "nccl is asked for: stage 0 has NCCL 2.28.9 and stage 1 has NCCL 2.27.3: install one version on both"
        assert words in done.stderr or words.replace("stage 0 has NCCL 2.28.9 and stage 1 has NCCL 2.27.3",
                                                     "stage 1 has NCCL 2.27.3 and stage 0 has NCCL 2.28.9") in done.stderr, done.stderr
        report, _ = run_job(folder, job, *on(services), *ON_DEVICE, "--set", "balance.data_path=cuda-ipc")
        assert losses(report) == losses(expected)
    os.environ["LATE_CLOSED"] = "1"
    with stages(folder, 2, prefixes=prefixes) as services:
        report, _ = run_job(folder, job, *on(services), *ON_DEVICE)
        assert losses(report) == losses(expected)
        assert "install one version on both" in services[0].log()
    del os.environ["LATE_CLOSED"]
    print("ok two versions")


def refusals(folder):
    job = write_job(folder)
    _, done = run_job(folder, job, "--local", "--set", "balance.data_path=nccl", expect=2)
    assert "it needs pipeline.device cuda" in done.stderr, done.stderr
    _, done = run_job(folder, job, "--local", *NCCL, expect=4)
    assert "is on the same GPU; --nccl-shared-gpu at both ends allows that" in done.stderr, done.stderr
    os.environ["LATE_NCCL_MISSING"] = "1"
    _, done = run_job(folder, job, *LOCAL, *NCCL, expect=2)
    assert "nccl is asked for: there is no NCCL either" in done.stderr, done.stderr
    _, done = run_job(folder, job, *LOCAL, *ON_DEVICE)
    assert "tensors do not go by NCCL: there is no NCCL either" in done.stderr, done.stderr
    del os.environ["LATE_NCCL_MISSING"]
    print("ok refusals")


on_late_device(same_bits, versions, refusals)
