# SPDX-License-Identifier: Apache-2.0
"""Stages and stores as services on the first GPU: BPipe over cuda-ipc, NCCL and memory of the host has the losses of a run
without eviction, with four and eight stages, and when a store is killed. Exit code 77 and the reason where there is no GPU."""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import (BIN, CTL, environment, losses, read_report, run_job, scratch, skip, wait_until,  # noqa: E402
                     write_job)

ON_GPU = ("--set", "pipeline.device=cuda")
KILLS = 8  # at most, until one loses blocks
PATHS = ("balance.require=cuda-ipc", "balance.data_path=shm", "balance.require=nccl")


def steps_of(path):
    try:
        with open(path, "rb") as file:
            whole = file.read().endswith(b"\n")
        return [event for event in read_report(path) if event["event"] == "step"] if whole else []
    except (OSError, ValueError):
        return []


def killed(folder, job, device):
    path = os.path.join(folder, f"killed-{time.monotonic_ns()}.jsonl")
    process = subprocess.Popen([CTL, "run", job, "--local", "--report", path, *ON_GPU, "--set", PATHS[0]],
                               env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: process.poll() is not None or any(stage["loaded"] for step in steps_of(path)
                                                         for stage in step["stages"]), 300, "no step parks blocks")
    os.kill(steps_of(path)[-1]["stores"][device]["pid"], signal.SIGKILL)
    assert process.wait(600) == 0, "the run failed"
    stages = [stage for step in steps_of(path) for stage in step["stages"]]
    assert all(stage["recomputed"] == stage["lost"] + stage["dropped"] for stage in stages)
    return read_report(path), sum(stage["recomputed"] for stage in stages)


def main():
    survey = subprocess.run([os.path.join(os.path.dirname(BIN.rstrip("/")), "tests", "gpu-paths"), "ipc"],
                            capture_output=True, text=True)
    if survey.returncode == 77:
        skip(survey.stdout.strip().removeprefix("SKIPPED: "))
    inline = {"init": None, "family": "gpt2", "layers": 8, "hidden": 256, "heads": 4, "vocab": 128, "seq": 128}
    train = {"steps": 20, "micro_batch": 2, "micro_batches": 8}
    with scratch() as folder:
        for stages in (4, 8):  # two level out: no schedule leaves its other half room for what one of them keeps more
            job = write_job(folder, model=inline, train=train, pipeline={"stages": stages}, balance={"policy": "bpipe"})
            expected, _ = run_job(folder, job, "--local", *ON_GPU, "--set", "balance.policy=none", timeout=600)
            for path in PATHS:
                report, _ = run_job(folder, job, "--local", "--nccl-shared-gpu", *ON_GPU, "--set", path, timeout=600)
                assert losses(report) == losses(expected), f"{stages} stages, {path}: other bits"
                evicted = sum(stage["evicted"] for stage in report[-1]["stages"])
                assert evicted > 0, report[-1]
                print(f"ok {stages} stages, {path}: {evicted} evictions a step, the same bits")
        job = write_job(folder, model=inline, train={**train, "steps": 60}, pipeline={"stages": 4},
                        balance={"policy": "bpipe"})
        expected, _ = run_job(folder, job, "--local", *ON_GPU, "--set", "balance.policy=none", timeout=600)
        again, kills = 0, 0
        while again == 0 and kills < KILLS:  # it may have held nothing at that moment
            kills += 1
            report, again = killed(folder, job, 3)
            assert losses(report) == losses(expected), "other bits after a store was killed"
        assert again > 0, f"{kills} stores were killed and no block was made again"
        print(f"ok a store was killed ({kills} times): {again} blocks were made again, the same bits")


main()
