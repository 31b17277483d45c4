# SPDX-License-Identifier: Apache-2.0
"""Tensor ranks on a device that is not there (tests/late), whose collectives NCCL puts on the stream of the operations: the bits
of the host for 2 and 4 ranks, with replicas, schedules, policies, recomputation and on every path between stages. Stages that
stay serve one driver after the other. A step that is repeated because a block was lost, a store that one rank alone loses, and
a rank that is killed, leave no rank waiting in a collective: they end, or go on to the same bits."""
import glob
import os
import signal
import time

from ballast import (GOLDEN, LONG, ON_DEVICE, Run, assert_nothing_left, descendants, losses, on, on_late_device, program_of, run_job,
                     seed, shared_memory_files, small_inline, stages, wait_until, write_job)
from replicas_test import bits_of, sets

SHARED_GPU = "--nccl-shared-gpu"
LOCAL = ("--local", SHARED_GPU, *ON_DEVICE)
MODELS = {
    "gpt2": {"init": None, "family": "gpt2", "layers": 4, "hidden": 40, "heads": 4, "vocab": 301, "seq": 20},
    "llama": {"init": None, "family": "llama", "layers": 4, "hidden": 32, "heads": 8, "kv_heads": 4, "ffn": 52, "vocab": 128,
              "seq": 16, "tied": True},
}


def job_of(folder, model, dtype="fp32", micro_batches=4, **more):
    return write_job(folder, model=MODELS[model], data={"validation": 0.2, "order": "shuffled"},
                     train={"steps": 3, "micro_batch": 1, "micro_batches": micro_batches, "validate_every": 2, "dtype": dtype},
                     **{"parallel": {"tensor_parts": 4, "data_parts": 2}, **more})


def same_bits(folder):
    """Tensor ranks, replicas, stages, path between stages."""
    ways = [("gpt2", "fp32", "1f1b", 2, [(2, 2, 1, "shm")], [(2, 2, 2, "nccl"), (2, 1, 2, "auto")]),
            ("llama", "bf16", "zb-v", 2, [(2, 1, 2, "auto")], [(2, 1, 2, "nccl"), (2, 2, 2, "tcp")]),
            ("gpt2", "bf16", "interleaved", 4, [], [(2, 1, 2, "auto"), (4, 1, 1, "auto"), (4, 2, 2, "auto")])]
    for model, dtype, schedule, parts, grids, more in ways:
        job = job_of(folder, model, dtype, pipeline={"schedule": schedule}, parallel={"tensor_parts": parts, "data_parts": 2})
        grids = grids + (more if LONG else [])
        expected = None
        for tensor, replicas, count, path in grids:
            keys = {"pipeline__stages": count, "pipeline__schedule": "1f1b" if count == 1 else schedule}
            if expected is None:
                expected = bits_of(run_job(folder, job, "--local", *sets(pipeline__stages=1, pipeline__schedule="1f1b"))[0])
            report, done = run_job(folder, job, *LOCAL, *sets(parallel__tensor=tensor, parallel__data=replicas,
                                                               balance__data_path=path, **keys))
            assert bits_of(report) == expected, f"{model}, {dtype}, {schedule}, {(tensor, replicas, count, path)}: {done.stderr[-2000:]}"
            print(f"ok {model}, {dtype}, {schedule}: {tensor} x {replicas} x {count}, {path}", flush=True)


def balanced(folder):
    job = job_of(folder, "gpt2", micro_batches=8, pipeline={"stages": 4}, parallel={"tensor_parts": 2})
    expected = bits_of(run_job(folder, job, "--local", *sets(pipeline__stages=1))[0])
    every = [("none", {"pipeline__recompute": "full", "pipeline__stages": 2}), ("bpipe", {"memory__slots": 3}),
             ("auto", {"memory__slots": 3}), ("drop", {"memory__slots": 2, "balance__data_path": "shm"}),
             ("none", {"train__post_validation": "true", "pipeline__stages": 2}),
             ("none", {"pipeline__recompute": "attention", "pipeline__stages": 2}),
             ("none", {"train__optimizer_memory": "host", "pipeline__stages": 2})]
    for policy, keys in every if LONG else [every[0], every[-1]]:  # loses_a_store is of bpipe
        report, done = run_job(folder, job, *LOCAL, *sets(parallel__tensor=2, balance__policy=policy, **keys))
        assert bits_of(report) == expected, f"{policy}, {keys}: {done.stderr[-2000:]}"
        firsts = [stage for event in report if event["event"] == "step" for stage in event["stages"] if stage["stage"] == 0]
        assert policy != "bpipe" or all(stage["evicted"] > 0 for stage in firsts), firsts
        print(f"ok {policy}, {keys}", flush=True)


def served(folder):
    """The same services, run after run: the communicator of the tensor ranks lives as long as one driver."""
    job = job_of(folder, "gpt2")
    expected = bits_of(run_job(folder, job, "--local", *sets(pipeline__stages=1))[0])
    with stages(folder, 2, prefixes=[((), "127.0.0.1:0", SHARED_GPU)] * 2) as services:
        for path in ("auto", "shm", "auto"):
            report, _ = run_job(folder, job, *on(services), *ON_DEVICE,
                                *sets(parallel__tensor=2, pipeline__stages=1, balance__data_path=path))
            assert bits_of(report) == expected, path
            assert "is up, shm: same machine, notes only" in services[0].log(), services[0].log()
        endless = write_job(folder, "endless.yaml", model=MODELS["gpt2"], pipeline={"stages": 1}, parallel={"tensor": 2},
                            train={"steps": 1000000, "micro_batch": 1, "micro_batches": 4})
        run = Run(folder, endless, *on(services), *ON_DEVICE)
        run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        services[1].kill(signal.SIGKILL)
        assert "tensor rank 1 of stage 0" in run.end(5)
        wait_until(lambda: "link to tensor rank 1 of stage 0 ended" in services[0].log(), 60, services[0].log())
        services[1].__init__(folder, "stage-service", "--listen", services[1].address, SHARED_GPU)
        report, _ = run_job(folder, job, *on(services), *ON_DEVICE, *sets(parallel__tensor=2, pipeline__stages=1))
        assert bits_of(report) == expected, "after a rank was killed and another one came"
    for left in glob.glob(os.path.join(folder, "ballast", "stage-*.data")):  # of the one that was killed
        os.remove(left)
    print("ok services that stay, and one that is replaced")


def loses_a_store(folder):
    """The store of one tensor rank alone: its blocks are made again by all ranks, or, as asked, the step is."""
    choice = seed()
    shared = shared_memory_files()
    parts = {"model": small_inline(hidden=32, layers=4, seq=32), "data": {"train": f"{GOLDEN}/gpt2/tokens.bin"},
             "train": {"steps": 1000000, "micro_batch": 1, "micro_batches": 6}, "pipeline": {"stages": 4}}
    for on_loss in ("recompute", "abort"):
        job = write_job(folder, **parts, parallel={"tensor": 2}, memory={"slots": 3},
                        balance={"policy": "bpipe", "on_loss": on_loss})
        run = Run(folder, job, *LOCAL)
        store = 3 * 2 + 1  # stage 3, tensor rank 1
        before = run.wait_for(lambda steps: steps and all(stage["loaded"] for stage in steps[-1]["stages"][:2]),
                              "no blocks are parked")
        pids = set(descendants(run.pid))
        time.sleep(choice.uniform(0, 0.1))
        os.kill(before[-1]["stores"][store]["pid"], signal.SIGKILL)
        run.wait_for(lambda steps: steps[-1]["stores"][store]["pid"] != before[-1]["stores"][store]["pid"] and
                     all(stage["loaded"] for stage in steps[-1]["stages"][:2]), "the store did not come back")
        pids.update(descendants(run.pid))
        run.end(130, signal.SIGINT)
        assert_nothing_left(folder, list(pids), shared)
        last = run.steps()[-1]["step"]
        alone = write_job(folder, "alone.yaml", **{**parts, "parallel": {"tensor_parts": 2}, "pipeline": {"stages": 1}})
        report, _ = run_job(folder, alone, "--local", "--steps", str(last), timeout=300)
        got = [(event["loss"].hex(), event["grad_norm"].hex()) for event in run.steps()]
        assert got == losses(report), f"{on_loss}: other bits"
        print(f"ok {on_loss}: a store of one rank killed, {last} steps, the same bits", flush=True)


def killed(folder):
    choice = seed()
    shared = shared_memory_files()
    job = write_job(folder, model=small_inline(), data={"train": [os.path.abspath(__file__)], "format": "text"},
                    train={"steps": 1000000, "micro_batch": 1, "micro_batches": 4}, pipeline={"stages": 2},
                    parallel={"tensor": 2})
    for number in (signal.SIGKILL, *[signal.SIGSTOP, signal.SIGKILL] * (5 * LONG)):
        run = Run(folder, job, *LOCAL, start_new_session=True)
        steps = run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        pids = descendants(run.pid)
        victim = choice.choice(steps[-1]["stages"])
        assert program_of(victim["pid"]) == "stage-service"
        time.sleep(choice.uniform(0, 0.2))
        begin = time.monotonic()
        os.kill(victim["pid"], number)
        message = run.end(5)
        name = f"tensor rank {victim['tensor']} of stage {victim['stage']}"
        assert name in message, f"does not name {name}:\n{message[-3000:]}"
        assert time.monotonic() - begin < 10, f"{number}: took {time.monotonic() - begin:.1f} s"
        assert_nothing_left(folder, pids, shared)
        print(f"ok {name}, {number.name}: exit 5 after {time.monotonic() - begin:.2f} s", flush=True)


def refused(folder):
    job = job_of(folder, "gpt2", pipeline={"stages": 1})
    _, done = run_job(folder, job, "--local", *ON_DEVICE, *sets(parallel__tensor=2), expect=4)
    assert "is on the same GPU; --nccl-shared-gpu at both ends allows that" in done.stderr, done.stderr
    os.environ["LATE_NCCL_MISSING"] = "1"
    _, done = run_job(folder, job, *LOCAL, *sets(parallel__tensor=2), expect=2)
    del os.environ["LATE_NCCL_MISSING"]
    assert "tensor ranks on GPUs need NCCL: there is no NCCL either" in done.stderr, done.stderr
    print("ok ranks on one GPU, and no NCCL, are refused with the reason")


on_late_device(same_bits, balanced, served, loses_a_store, killed, refused)
