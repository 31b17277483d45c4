# SPDX-License-Identifier: Apache-2.0
"""Ranks on the first GPU: replicas whose weights and gradients go by cuda-ipc, by NCCL and through memory of the host, tensor
ranks whose collectives NCCL puts on the stream of the operations (over sockets, each process a host of its own to it), both
together, chimera, and sequences in slices. Each has the bits of one rank with the same parts, and is near the host. A tensor
rank is killed: the run ends and names it. Exit code 77 and the reason where there is no GPU."""
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import BIN, Run, losses, run_job, scratch, skip, write_job  # noqa: E402

ON_GPU = ("--set", "pipeline.device=cuda")
GPU = ("--local", *ON_GPU, "--nccl-shared-gpu")
TOLERANCE = 1e-3
STEPS = int(os.environ.get("BALLAST_TEST_STEPS", "10"))
INLINE = {"init": None, "family": "gpt2", "layers": 4, "hidden": 128, "heads": 4, "vocab": 128, "seq": 64}
# What is alike in a family of runs, and the grids that share its bits. The first is of one rank.
FAMILIES = [
    ("replicas", {"parallel.data_parts": 2},
     [{"parallel.data": 2}, {"parallel.data": 2, "balance.data_path": "nccl"}, {"parallel.data": 2, "balance.data_path": "shm"},
      {"pipeline.schedule": "chimera", "pipeline.stages": 2}]),
    ("tensor ranks", {"parallel.tensor_parts": 2},
     [{"parallel.tensor": 2}, {"parallel.tensor": 2, "pipeline.stages": 2, "pipeline.schedule": "zb-v"},
      {"parallel.tensor": 2, "pipeline.recompute": "full"}, {"parallel.tensor": 2, "train.optimizer_memory": "host"}]),
    ("both", {"parallel.tensor_parts": 2, "parallel.data_parts": 2}, [{"parallel.tensor": 2, "parallel.data": 2}]),
    ("slices", {"pipeline.slices": 2, "pipeline.schedule": "seq1f1b"}, [{"pipeline.stages": 2}]),
]


def sets(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def numbers(report):
    return [event["loss"] for event in report if event["event"] == "step"]


def families(folder, dtype, attention):
    for name, alike, grids in FAMILIES:
        job = write_job(folder, model=INLINE, pipeline={"attention": attention},
                        train={"steps": STEPS, "micro_batch": 2, "micro_batches": 8, "dtype": dtype})
        alone, _ = run_job(folder, job, *GPU, *sets(alike), timeout=300)
        host, _ = run_job(folder, job, "--local", *sets(alike), timeout=300)
        worst = max(abs(a - b) / abs(b) for a, b in zip(numbers(alone), numbers(host)))
        assert worst <= TOLERANCE, f"{name}, {dtype}, {attention}: {worst} from the host's losses"
        for grid in grids:
            report, done = run_job(folder, job, *GPU, *sets({**alike, **grid}), timeout=300)
            assert losses(report) == losses(alone), f"{name}, {dtype}, {attention}, {grid}: other bits\n{done.stderr[-2000:]}"
            seconds = sorted(event["seconds"] for event in report if event["event"] == "step")
            print(f"ok {name}, {dtype}, {attention}, {grid}: the same bits, {1e3 * seconds[len(seconds) // 2]:.1f} ms a step", flush=True)
        print(f"ok {name}, {dtype}, {attention}: at most {worst:.2g} from the host's losses", flush=True)


def killed(folder):
    job = write_job(folder, model=INLINE, parallel={"tensor": 2}, pipeline={"stages": 1},
                    train={"steps": 1000000, "micro_batch": 2, "micro_batches": 8})
    run = Run(folder, job, *GPU)
    steps = run.wait_for(lambda steps: len(steps) >= 3, "the run makes no steps", 120)
    begin = time.monotonic()
    os.kill(steps[-1]["stages"][1]["pid"], signal.SIGKILL)
    message = run.end(5)
    assert "tensor rank 1 of stage 0" in message, message[-3000:]
    print(f"ok a tensor rank was killed: the run ended after {time.monotonic() - begin:.1f} s and named it")


def main():
    survey = subprocess.run([os.path.join(BIN, "stage-service"), "--list-devices"], capture_output=True, text=True)
    print(survey.stdout.strip())
    if survey.returncode != 0:
        skip(survey.stderr.strip())
    with scratch() as folder:
        families(folder, "bf16", "flash")
        killed(folder)
        if "quick" not in sys.argv[1:]:
            families(folder, "fp32", "naive")


main()
