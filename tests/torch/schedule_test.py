#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ballast_torch.schedule: PyTorch runs the orders of ballastctl over gloo on four ranks, operation by operation as they
were exported; losses and gradients are those of PyTorch's own 1F1B; what attach counts of blocks is what was
simulated."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import need_torch, scratch  # noqa: E402

need_torch()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, schedules  # noqa: E402

import ballast_torch as bt  # noqa: E402
from ballast_torch.pipelining import action_list  # noqa: E402
from ballast_torch.residency import plan_residency  # noqa: E402

RANKS, COUNT, HIDDEN, ROWS = 4, 8, 16, 4
SCALES = hasattr(schedules, "REDUCE_GRAD")  # PyTorch 2.8 does not scale the gradients after a W
NAMES = {"1f1b": {}, "gpipe": {}, "zb-h1": {}, "interleaved": {}, "v-half": {}, "v-min": {}, "zb-v": {}, "1f1b-v": {},
         "adaptive": {"memory": 3, "cost": (2, 3, 2, 0.5)}, "dualpipe-v": {}}


def loss(y, target):
    return (y - target).square().mean()


def make_parts(count):
    """The same layers for any number of stages."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(2 * RANKS)]
    each = len(layers) // count
    return [nn.Sequential(*layers[i * each:(i + 1) * each]) for i in range(count)], layers


def step(runtime, held, count):
    torch.manual_seed(1)
    x, target = torch.randn(2, COUNT * ROWS, HIDDEN).unbind()
    losses = []
    runtime.step(*((x,) if 0 in held else ()), **({"target": target, "losses": losses} if count - 1 in held else {}))
    return [value.item() for value in losses]


def run(rank, folder, orders):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{folder}/init")
    device, everything = torch.device("cpu"), {}
    parts, layers = make_parts(RANKS)
    theirs = step(Schedule1F1B(PipelineStage(parts[rank], rank, RANKS, device), COUNT, loss_fn=loss), [rank], RANKS)
    gathered = [None] * RANKS
    mine = {i: [p.grad for p in layer.parameters()] for i, layer in enumerate(layers)
            if layer[0].weight.grad is not None}
    dist.all_gather_object(gathered, (theirs, mine))
    expected_losses = gathered[-1][0]
    for _, gradients in gathered:
        everything.update(gradients)
    assert len(everything) == len(layers) and len(expected_losses) == COUNT
    for name, order in orders.items():
        parts, layers = make_parts(order.num_stages)
        held = order.placement[rank]
        runtime = order.runtime([PipelineStage(parts[i], i, order.num_stages, device) for i in held], loss_fn=loss)
        losses = step(runtime, held, order.num_stages)
        assert not losses or losses == expected_losses, (name, losses, expected_losses)
        cells = order.csv.splitlines()[rank].split(",")
        for i, layer in enumerate(layers):
            stage = i * order.num_stages // len(layers)
            if stage in held:
                last = [cell[1] for cell in cells if cell[0] == str(stage)][-1]
                factor = COUNT if last == "W" and not SCALES else 1
                for p, wanted in zip(layer.parameters(), everything[i]):
                    torch.testing.assert_close(p.grad, factor * wanted, rtol=1e-5, atol=1e-7)
        ran = [str(action) for action in runtime.pipeline_order[rank]]
        assert ran == cells and len(cells) >= 2 * COUNT * len(held), (name, ran, cells)
        counted = plan_residency(action_list(runtime), cap=len(cells)).without
        assert counted == order.peak[rank], (name, rank, counted, order.peak)
        if rank == 0:
            print(f"ok {name}: {order.num_stages} stages, blocks at most {order.peak}", flush=True)
    if rank == 0:
        mistakes(runtime)
    dist.destroy_process_group()


def refused(kind, words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)


def mistakes(runtime):
    refused(ValueError, "the micro-batches are 8, the order has 4", bt.schedule("v-half", RANKS, 4).load, runtime)
    refused(ValueError, "the ranks are 4, the order has 2; the stages of all ranks are 8, the order has 2",
            bt.schedule("1f1b", 2, COUNT).load, runtime)
    refused(ValueError, "the stages of rank 0 are [0, 7], the order has [0, 4]",
            bt.schedule("interleaved", RANKS, COUNT).load, runtime)
    refused(ValueError, "1f1bb", bt.schedule, "1f1bb", RANKS, COUNT)
    for name in ("chimera", "seq1f1b", "dualpipe"):
        refused(ValueError, f"{name}: PyTorch can express neither", bt.schedule, name, RANKS, COUNT)
    refused(ValueError, "cost", bt.schedule, "zb-v", RANKS, COUNT, cost=(1, 2))
    kept = {key: os.environ.pop(key, None) for key in ("BALLAST_BIN", "PATH")}
    os.environ["BALLAST_BIN"] = "/nowhere"
    refused(FileNotFoundError, "ballastctl is not there: neither in BALLAST_BIN (/nowhere)", bt.schedule, "1f1b", 2, 2)
    os.environ.update({key: value for key, value in kept.items() if value is not None})
    print("ok mistakes", flush=True)


if __name__ == "__main__":
    with scratch() as folder:
        orders = {name: bt.schedule(name, RANKS, COUNT, **options) for name, options in NAMES.items()}
        assert orders["v-half"] == bt.schedule("v-half", RANKS, COUNT), "another order of the same name"
        mp.start_processes(run, (folder, orders), nprocs=RANKS, start_method="fork")  # four imports take long
