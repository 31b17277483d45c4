# SPDX-License-Identifier: Apache-2.0
"""Copies of the model on a device that is not there (tests/late): replicas, several parts of the gradient on one rank, and the
two copies of chimera and dualpipe have the bits of the host on every path, beside parked blocks and recomputation. A rank that
is killed is named, nothing is left, and the run goes on from its checkpoint."""
import os
import re
import signal

from ballast import (LONG, ON_DEVICE, Run, assert_nothing_left, descendants, losses, on_late_device, program_of, run_job, shared_memory_files, small_inline, write_job)
from replicas_test import bits_of, job_of, sets

SHARED_GPU = ("--nccl-shared-gpu",)


def check(folder, expected, job, *words, **keys):
    report, done = run_job(folder, job, "--local", "-v", *ON_DEVICE, *words, *sets(**keys))
    assert bits_of(report) == expected, f"{keys}:\n {bits_of(report)}\n {expected}\n{done.stderr[-2000:]}"
    return report, done


def expected_of(folder, job, **keys):
    report, _ = run_job(folder, job, "--local", *sets(**keys))
    return bits_of(report)


def replicas(folder):
    for model, dtype, schedule, stages, data, paths in (("gpt2", "fp32", "1f1b", 2, 2, ("auto", "shm", "nccl", *["tcp"] * LONG)),
                                                        ("llama", "bf16", "zb-v", 2, 4 if LONG else 2,
                                                         ("auto", "shm", "nccl", *["tcp"] * LONG)),
                                                        ("gpt2", "bf16", "interleaved", 2, 1, ("auto",) * LONG)):
        job = job_of(folder, model, dtype=dtype, pipeline={"stages": stages, "schedule": schedule})
        expected = expected_of(folder, job)
        for path in paths:
            words = SHARED_GPU if path == "nccl" else ()
            done = check(folder, expected, job, *words, parallel__data=data, balance__data_path=path)[1]
            chosen = {word.split(":")[0] for word in re.findall(r"data path: (?:link to )?stage[^,]*(?:, | is up, )(.*)", done.stderr)}
            assert {"auto": "cuda-ipc"}.get(path, path) in chosen, (path, chosen, done.stderr[-3000:])
    print("ok replicas: the host's bits on every path")


def balanced(folder):
    job = job_of(folder, "gpt2", pipeline={"stages": 4})
    expected = expected_of(folder, job)
    for policy, slots in (("bpipe", 3), ("drop", 3), ("auto", 3))[:3 if LONG else 1]:
        report, _ = check(folder, expected, job, parallel__data=2, balance__policy=policy, memory__slots=slots)
        if policy == "bpipe":
            last = [event for event in report if event["event"] == "step"][-1]
            firsts = [stage for stage in last["stages"] if stage["stage"] == 0]
            assert len(firsts) == 2 and all(stage["evicted"] > 0 for stage in firsts), firsts
    check(folder, expected, job, parallel__data=2, pipeline__recompute="full", balance__data_path="shm")
    if LONG:
        check(folder, expected, job, parallel__data=2, train__post_validation="true")
    job = job_of(folder, "gpt2", dtype="bf16", pipeline={"stages": 2})
    check(folder, expected_of(folder, job), job, parallel__data=2, train__post_validation="true")
    print("ok replicas beside parked, dropped and recomputed blocks")


def two_copies(folder):
    ways = [("dualpipe", "bf16", "auto"), ("chimera", "fp32", "auto"), ("chimera", "bf16", "shm")]
    for schedule, dtype, path in ways if LONG else ways[::2]:
        job = job_of(folder, "gpt2", dtype=dtype, pipeline={"stages": 4, "schedule": schedule})
        check(folder, expected_of(folder, job), job, balance__data_path=path)
    job = job_of(folder, "gpt2", pipeline={"stages": 2, "schedule": "chimera"}, parallel={"data_parts": 4, "tensor_parts": 2})
    check(folder, expected_of(folder, job), job, *SHARED_GPU, parallel__data=2, parallel__tensor=2)
    print("ok the two copies of chimera and dualpipe")


def refused(folder):
    for keys in ({"parallel__data": 2}, {"pipeline__schedule": "chimera", "pipeline__stages": 4}):
        job = job_of(folder, "gpt2", pipeline={"stages": 2})
        _, done = run_job(folder, job, "--local", *ON_DEVICE, *sets(train__optimizer_memory="host", **keys), expect=2)
        assert "train.optimizer_memory" in done.stderr and "take device" in done.stderr, done.stderr
    print("ok an optimizer on the host is refused by name")


def killed(folder):
    job = write_job(folder, "kept.yaml", model=small_inline(), data={"train": [__file__], "format": "text"},
                    train={"steps": 100000, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 2},
                    parallel={"data": 2}, checkpoint={"folder": os.path.join(folder, "kept"), "every": 2})
    shared = shared_memory_files()
    for i, (rank, name) in enumerate(((1, "stage 1 of replica 0"), (2, "stage 0 of replica 1"))):
        run = Run(folder, job, "--local", *ON_DEVICE, *["--resume"] * i, start_new_session=True)
        run.wait_for(lambda steps: len(steps) >= 3, "the run did not make three steps")
        pids = descendants(run.pid)
        victim = [stage["pid"] for stage in run.steps()[-1]["stages"]][rank]
        assert program_of(victim) == "stage-service"
        os.kill(victim, signal.SIGKILL)
        message = run.end(5)
        assert name in message, f"does not name {name}:\n{message[-3000:]}"
        assert_nothing_left(folder, pids, shared)
    last = run.steps()[-1]["step"]
    report, _ = run_job(folder, job, "--local", *ON_DEVICE, "--resume", "--steps", str(last + 2))
    wanted, _ = run_job(folder, job, "--local", "--steps", str(last + 2), "--set", "checkpoint.folder=null",
                        "--set", "checkpoint.every=0")
    steps = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    assert steps and steps == losses(wanted)[-len(steps):], (steps, losses(wanted))
    print("ok each killed rank is named; the run goes on to the same bits")


on_late_device(replicas, balanced, two_copies, refused, killed)
