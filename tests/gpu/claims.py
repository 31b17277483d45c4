# SPDX-License-Identifier: Apache-2.0
"""What the papers claim of whole jobs, by services on the first GPU. Exit code 77 and the reason where there is none.

    claims.py bits ATTENTION    losses and norms of one, two and four stages, each run twice: the same bits
    claims.py parking STAGES    what parking costs: one plan without evictions and loads and with them, by turns: seconds of a
                                step, gaps of the GPU (what lies between its operations) and blocks that went; the losses
                                are the same bits and nothing is made again
"""
import os
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import BIN, ROOT, losses, run_job, scratch, skip, stages_of, write_job  # noqa: E402

ON_GPU = ("--local", "--nccl-shared-gpu", "--set", "pipeline.device=cuda")
TRY = bool(os.environ.get("BALLAST_TRY"))  # on a device that is not there: tiny
WARM = 2  # steps of a run that do not count
ROUNDS = 2
# By stages: one GPU with memory of the host below it, the same of two, and stores on the GPU itself.
PARKING = {1: ("gpipe", {"policy": "offload", "host": "8GiB"}, 3), 2: ("gpipe", {"policy": "offload", "host": "8GiB"}, 3),
           4: ("1f1b", {"policy": "bpipe"}, 3)}


def job_of(folder, model, stages, schedule, attention, **train):
    sizes = {"vocab": 256, **model, **({"hidden": 128, "heads": 4, "seq": 32} if TRY else {})}
    if TRY and "ffn" in sizes:
        sizes["ffn"] = 256
    return write_job(folder, model={"init": None, **sizes}, data={"train": f"{ROOT}/LICENSE", "format": "text"},
                     train={"dtype": "bf16", "lr": 1e-4, **train},
                     pipeline={"stages": stages, "schedule": schedule, "attention": attention})


def bits(folder, attention):
    gpt2 = {"family": "gpt2", "layers": 4, "hidden": 1600, "heads": 25, "seq": 1024}
    kept = None
    for stages in (1, 2, 4):
        job = job_of(folder, gpt2, stages, "1f1b", attention, steps=4 if TRY else 10, micro_batch=1, micro_batches=8)
        for number in (1, 2):
            found = losses(run_job(folder, job, *ON_GPU, timeout=300)[0])
            kept = kept or found
            assert found == kept, f"{stages} stages, run {number}: other bits"
            print(f"ok {attention}, {stages} stages, run {number}: the same bits, last loss {float.fromhex(found[-1][0]):.6f}",
                  flush=True)


def median_of(report, key, stage):
    return statistics.median(step["stages"][stage][key] for step in report if step["event"] == "step" and step["step"] > WARM)


def seconds_of(report):
    return statistics.median(step["seconds"] for step in report if step["event"] == "step" and step["step"] > WARM)


def gaps(report, stages):
    """What lies between operations, as a share of the step, of each stage."""
    return ", ".join(f"{100 * median_of(report, 'stall_seconds', stage) / seconds_of(report):.1f} %" for stage in range(stages))


def parking(folder, stages):
    schedule, balance, slots = PARKING[stages]
    llama = {"family": "llama", "layers": stages, "hidden": 4096, "heads": 32, "ffn": 11008, "seq": 1024}
    job = job_of(folder, llama, stages, schedule, "flash", steps=WARM + (2 if TRY else 8), micro_batch=1, micro_batches=8)
    sets = [word for key, value in balance.items() for word in ("--set", f"balance.{key}={value}")]
    ways = {"alone": ("--set", "balance.policy=none"), "parked": (*sets, "--set", f"memory.slots={slots}")}
    quotients = []
    for number in range(ROUNDS):
        order = list(ways)[::-1 if number % 2 == 1 else 1]
        found = {way: run_job(folder, job, *ON_GPU, *ways[way], timeout=300)[0] for way in order}
        assert losses(found["alone"]) == losses(found["parked"]), f"{stages} stages: other bits with evictions and loads"
        assert all(stage["recomputed"] == 0 and stage["loaded"] == stage["evicted"] for stage in stages_of(found["parked"]))
        assert not any(stage["evicted"] for stage in stages_of(found["alone"]))
        quotients.append(seconds_of(found["parked"]) / seconds_of(found["alone"]))
    parked = found["parked"]
    blocks = [int(median_of(parked, "evicted", stage)) for stage in range(stages)]
    assert sum(blocks) > 0, "nothing was parked"
    last = parked[-1]["stages"][0]
    print(f"parking: {stages} stage{'s' * (stages > 1)}, {schedule}, {balance['policy']}, {slots} slots: step {1e3 * seconds_of(found['alone']):.2f} "
          f"ms without, {statistics.median(quotients):.3f} times as long with ({min(quotients):.3f} to {max(quotients):.3f}); "
          f"gaps of the GPU {gaps(found['alone'], stages)} without, {gaps(parked, stages)} with; "
          f"{blocks} blocks of {last['peak_slot_bytes'] / last['peak_slots'] / 2**20:.1f} MiB a step; the same bits", flush=True)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("bits", "parking"):
        sys.exit(__doc__)
    survey = subprocess.run([os.path.join(BIN, "stage-service"), "--list-devices"], capture_output=True, text=True)
    if survey.returncode != 0:
        skip(survey.stderr.strip())
    with scratch() as folder:
        if sys.argv[1] == "bits":
            bits(folder, sys.argv[2])
        else:
            parking(folder, int(sys.argv[2]))


main()
