# SPDX-License-Identifier: Apache-2.0
"""Services that compute on a GPU, all on the first one: losses beside the host's, the same bits with and without
eviction and for every number of stages, whose tensors go by cuda-ipc, a checkpoint there and back. Then two and four stages
whose tensors go by NCCL, each process a host of its own to it, over sockets: the same bits as through the host, also with
evictions, and with the store of a device killed. By either, a stage is killed and the run goes on from its checkpoint. Exit
code 77 and the reason where there is no GPU."""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import (BIN, CTL, environment, losses, run_job, scratch, skip,  # noqa: E402
                     steps_so_far, wait_until, write_job)

ON_GPU = ("--set", "pipeline.device=cuda")
TOLERANCE = 1e-3
KILLS = 8  # at most, until one loses blocks
BY_NCCL = ("--local", *ON_GPU, "--nccl-shared-gpu", "--set", "balance.data_path=nccl")
BY_IPC = ("--local", *ON_GPU, "--set", "balance.data_path=cuda-ipc")


def numbers(report):
    return [event["loss"] for event in report if event["event"] == "step"]


def kill_during(folder, job, by, after, victim, expect):
    """The report of a run one of whose processes is killed once `after` steps are done; what it said at its end."""
    path = os.path.join(folder, f"killed-{time.monotonic_ns()}.jsonl")
    with open(path + ".txt", "w") as file:
        process = subprocess.Popen([CTL, "run", job, "--report", path, *by], env=environment(folder), stderr=file,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: process.poll() is not None or len(steps_so_far(path)) >= after, 300, "the run makes no steps")
    os.kill(victim(steps_so_far(path)[-1]), signal.SIGKILL)
    began = time.monotonic()
    code = process.wait(600)
    with open(path + ".txt") as file:
        words = file.read()
    assert code == expect, f"exit code {code}, expected {expect}\n{words[-3000:]}"
    return steps_so_far(path), time.monotonic() - began, words


def by_nccl(folder, inline, train):
    for stages, schedule, policy in ((2, "1f1b", "none"), (4, "1f1b", "none"), (4, "interleaved", "none"),
                                     (2, "zb-v", "none"), (4, "1f1b", "bpipe")):
        job = write_job(folder, model=inline, train=train, balance={"policy": policy},
                        pipeline={"stages": stages, "schedule": schedule})
        staged, _ = run_job(folder, job, "--local", *ON_GPU, "--set", "balance.data_path=shm", timeout=600)
        report, done = run_job(folder, job, *BY_NCCL, "-v", timeout=600)
        assert losses(report) == losses(staged), f"{stages} stages, {schedule}, {policy}: other bits by NCCL"
        evicted = sum(stage["evicted"] for stage in report[-1]["stages"])
        assert (evicted > 0) == (policy == "bpipe"), report[-1]
        assert "nccl: both ends have NCCL " in done.stderr, done.stderr[-3000:]
        print(f"ok {stages} stages, {schedule}, {policy} by NCCL: the same bits as through the host")
    long = {**train, "steps": 60}
    expected, _ = run_job(folder, write_job(folder, name="plain.yaml", model=inline, train=long, pipeline={"stages": 4}),
                          "--local", *ON_GPU, timeout=600)
    again, kills = 0, 0
    while again == 0 and kills < KILLS:  # it may have held nothing at that moment
        kills += 1
        job = write_job(folder, model=inline, train=long, pipeline={"stages": 4}, balance={"policy": "bpipe"},
                        checkpoint={"folder": f"{folder}/by-nccl-{kills}", "every": 5})
        steps, _, _ = kill_during(folder, job, BY_NCCL, 3, lambda step: step["stores"][3]["pid"], 0)
        again = sum(stage["recomputed"] for step in steps for stage in step["stages"])
        assert numbers(steps) == numbers(expected), "other bits after a store was killed"
    assert again > 0, f"{kills} stores were killed and no block was made again"
    print(f"ok a store was killed ({kills} times): {again} blocks were made again, the same bits")
    for by in (BY_IPC, BY_NCCL):
        job = write_job(folder, model=inline, train=long, pipeline={"stages": 4}, balance={"policy": "bpipe"},
                        checkpoint={"folder": f"{folder}/{by[-1]}", "every": 5})
        steps, seconds, words = kill_during(folder, job, by, 8, lambda step: step["stages"][1]["pid"], 5)
        assert "stage 1" in words, words[-3000:]
        rest, _ = run_job(folder, job, *by, "--resume", timeout=600)
        assert numbers(steps) == numbers(expected)[:len(steps)] and numbers(rest) == numbers(expected)[-len(numbers(rest)):]
        print(f"ok {by[-1]}, a stage was killed: the run ended after {seconds:.1f} s and went on to the same bits")


def main():
    survey = subprocess.run([os.path.join(BIN, "stage-service"), "--list-devices"], capture_output=True, text=True)
    print(survey.stdout.strip())
    if survey.returncode != 0:
        skip(survey.stderr.strip())
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 128, "heads": 4, "vocab": 128, "seq": 64}
    train = {"steps": 20, "micro_batch": 2, "micro_batches": 8}
    with scratch() as folder:
        for dtype in ("fp32", "bf16"):
            for attention in ("naive", "flash"):
                kept = None
                for stages, schedule, policy in ((1, "1f1b", "none"), (2, "1f1b", "none"), (4, "1f1b", "none"),
                                                 (4, "1f1b", "bpipe"), (2, "zb-v", "none")):
                    job = write_job(folder, model=inline, train={**train, "dtype": dtype}, balance={"policy": policy},
                                    pipeline={"stages": stages, "schedule": schedule, "attention": attention})
                    report, done = run_job(folder, job, "--local", "-v", *ON_GPU, timeout=600)
                    chosen = done.stderr.count("cuda-ipc: same machine")  # each end of each link of stages says it
                    assert chosen >= 2 * (stages - 1), f"{chosen} ends by cuda-ipc\n{done.stderr[-3000:]}"
                    if kept is None:
                        kept = losses(report)
                        host, _ = run_job(folder, job, "--local", timeout=600)
                        worst = max(abs(a - b) / abs(b) for a, b in zip(numbers(report), numbers(host)))
                        assert worst <= TOLERANCE, f"{dtype}, {attention}: {worst} from the host's losses"
                        print(f"ok {dtype}, {attention}: at most {worst:.2g} from the host's losses")
                    assert losses(report) == kept, f"{dtype}, {attention}, {stages} stages, {schedule}, {policy}"
                    if policy == "bpipe":
                        assert report[-1]["stages"][0]["evicted"] > 0
                    print(f"ok {dtype}, {attention}, {stages} stages, {schedule}, {policy}: the same bits")
        job = write_job(folder, model=inline, train={**train, "steps": 6}, checkpoint={"folder": f"{folder}/kept", "every": 3})
        whole, _ = run_job(folder, write_job(folder, name="whole.yaml", model=inline, train={**train, "steps": 6}),
                           "--local", *ON_GPU)
        run_job(folder, job, "--local", "--steps", "3", *ON_GPU)
        rest, _ = run_job(folder, job, "--local", "--resume", *ON_GPU)
        assert numbers(rest) == numbers(whole)[3:], "a resumed run"
        print("ok a resumed run has the same losses")
        by_nccl(folder, {**inline, "layers": 8}, train)


main()
