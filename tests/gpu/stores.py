# SPDX-License-Identifier: Apache-2.0
"""Stages and stores as services on the first GPU: blocks that are parked over cuda-ipc, NCCL and memory of the host, and the
losses of a run without eviction, with two, four and eight stages, and when a store is killed. Exit code 77 and the reason
where there is no GPU.

    stores.py [2] [4] [8]    default: all of them
"""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import (BIN, Run, losses, read_report, run_job, scratch, skip, stages_of,  # noqa: E402
                     write_job)

ON_GPU = ("--set", "pipeline.device=cuda")
KILLS = 8  # at most, until one loses blocks
PATHS = ("balance.require=cuda-ipc", "balance.data_path=shm", "balance.require=nccl")
# Pipeline and policy. Of two stages no schedule leaves the second so much less to keep that it has room for a block of the
# first and for the one that it changes places with: what has no room there is made again (`mix`, which auto chooses).
BPIPE = ({}, {"policy": "bpipe"})
RUNS = {2: ({"schedule": "eager-1f1b"}, {"policy": "auto", "cap": 2}), 4: BPIPE, 8: BPIPE}
STEPS = int(os.environ.get("BALLAST_TEST_STEPS", "20"))


def killed(folder, job, device, path):
    """The report of a run whose store of a device is killed once it has had blocks; how many were made again."""
    run = Run(folder, job, "--local", "--nccl-shared-gpu", *ON_GPU, "--set", path)
    steps = run.wait_for(lambda steps: any(stage["loaded"] for stage in stages_of(steps)), "no step parks blocks", 300)
    os.kill(steps[-1]["stores"][device]["pid"], signal.SIGKILL)
    run.end(0, seconds=600)
    report = read_report(run.report)
    assert all(stage["recomputed"] == stage["lost"] + stage["dropped"] for stage in stages_of(report))
    return report, sum(stage["recomputed"] for stage in stages_of(report))


def run(folder, stages, inline, train):
    pipeline, balance = RUNS[stages]
    told = {"model": inline, "pipeline": {"stages": stages, **pipeline}, "balance": balance}
    job = write_job(folder, train=train, **told)
    unlimited = ("--set", "balance.policy=none", "--set", "balance.cap=64")
    expected, _ = run_job(folder, job, "--local", *ON_GPU, *unlimited, timeout=600)
    for path in PATHS:
        report, _ = run_job(folder, job, "--local", "--nccl-shared-gpu", *ON_GPU, "--set", path, timeout=600)
        assert losses(report) == losses(expected), f"{stages} stages, {path}: other bits"
        evicted = sum(stage["evicted"] for stage in stages_of(report))
        assert evicted > 0, report[-1]
        given_up = sum(stage["recomputed"] for stage in stages_of(report))
        assert given_up == 0 or balance != BPIPE[1], report[-1]
        print(f"ok {stages} stages, {path}: {evicted} evictions in {len(losses(report))} steps, the same bits", flush=True)
    job = write_job(folder, train={**train, "steps": 3 * train["steps"]}, **told)
    expected, _ = run_job(folder, job, "--local", *ON_GPU, *unlimited, timeout=600)
    for path in (PATHS[0], PATHS[2]):
        again, kills = 0, 0
        while again == 0 and kills < KILLS:  # it may have held nothing at that moment
            kills += 1
            report, again = killed(folder, job, stages - 1, path)
            assert losses(report) == losses(expected), f"{path}: other bits after a store was killed"
        assert again > 0, f"{path}: {kills} stores were killed and no block was made again"
        print(f"ok {stages} stages, {path}, a store was killed ({kills} times): {again} blocks were made again, the same bits",
              flush=True)


def main():
    survey = subprocess.run([os.path.join(BIN, "stage-service"), "--list-devices"], capture_output=True, text=True)
    if survey.returncode != 0:
        skip(survey.stderr.strip())
    inline = {"init": None, "family": "gpt2", "layers": 8, "hidden": 256, "heads": 4, "vocab": 128, "seq": 128}
    if STEPS < 20:  # on a machine without a GPU, where this is tried out (tests/late)
        inline.update(hidden=32, heads=2, seq=32)
    train = {"steps": STEPS, "micro_batch": 1, "micro_batches": 8}
    with scratch() as folder:
        for stages in [int(word) for word in sys.argv[1:]] or RUNS:
            run(folder, stages, inline, train)


main()
