# SPDX-License-Identifier: Apache-2.0
"""Layers and gradients of four parts on every grid: all of 1, 2 and 4 tensor ranks x replicas x stages, each with three
schedules, two dtypes and two data paths, have the losses, norms and held-out losses of one rank, to the bit. What is
recomputed, parked or dropped beside is drawn. Up to 64 ranks.

BALLAST_TEST_RUNS: that many of the 324 runs, drawn (all). BALLAST_TEST_SEED as everywhere."""
import itertools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from ballast import scratch, seed, served  # noqa: E402
from tensor_test import bits_of, job_of, run_grid  # noqa: E402

SIZES, SCHEDULES, DTYPES, PATHS = (1, 2, 4), ("1f1b", "zb-v", "interleaved"), ("fp32", "bf16"), ("shm", "tcp")


def ways_of(schedule, stages):
    """What a run may do beside, as overrides of its job."""
    ways = [{}, {"pipeline__recompute": "full"}, {"pipeline__recompute": "attention"}]
    if schedule == "1f1b" and stages > 1:  # of fewer slots than the first stage would fill
        ways += [{"balance__policy": policy, "memory__slots": stages - 1} for policy in ("drop", "auto")]
    if schedule == "1f1b" and stages == 4:
        ways.append({"balance__policy": "bpipe", "memory__slots": 3})
    return ways


def main():
    choice = seed()
    runs = list(itertools.product(itertools.product(SIZES, SIZES, SIZES), SCHEDULES, DTYPES, PATHS))
    choice.shuffle(runs)
    runs = runs[:int(os.environ.get("BALLAST_TEST_RUNS", len(runs)))]
    with scratch() as folder, served(folder) as place:
        expected = {dtype: bits_of(run_grid(folder, job_of(folder, "gpt2", dtype=dtype), place, (1, 1, 1))) for dtype in DTYPES}
        for grid, schedule, dtype, path in runs:
            schedule = "1f1b" if grid[2] == 1 else schedule
            way = choice.choice(ways_of(schedule, grid[2]))
            job = job_of(folder, "gpt2", dtype=dtype, pipeline={"schedule": schedule})
            report = run_grid(folder, job, place, grid, stores=True, balance__data_path=path, **way)
            assert bits_of(report) == expected[dtype], (grid, schedule, dtype, path, way)
    print(f"ok {len(runs)} runs on grids: the bits of one rank")


main()
