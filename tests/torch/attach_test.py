#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ballast_torch.attach: schedules of torch.distributed.pipelining over gloo, four ranks that park at each other's stores:
losses and gradients have the bits of the schedule alone, rank by rank no more blocks are kept than the cap says, to the byte;
stores that are killed in the middle of a step; mistakes."""
import contextlib
import itertools
import os
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import a_store, need_torch, same, scratch  # noqa: E402

need_torch()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,  # noqa: E402
                                          ScheduleInterleavedZeroBubble, ScheduleLoopedBFS, ScheduleZBVZeroBubble)

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # noqa: E402

import ballast_torch as bt  # noqa: E402

RANKS, COUNT, HIDDEN, ROWS, STEPS = 4, 8, 96, 64, 3
KINDS = {"1f1b": (Schedule1F1B, 1), "gpipe": (ScheduleGPipe, 1), "interleaved": (ScheduleInterleaved1F1B, 2),
         "looped-bfs": (ScheduleLoopedBFS, 2), "interleaved-zb": (ScheduleInterleavedZeroBubble, 2),
         "zb-v": (ScheduleZBVZeroBubble, 2)}

LOST = [("1f1b", 3), ("1f1b", 6), ("zb-v", 14)]
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
    print(f"SKIPPED zb-v: PyTorch {torch.__version__} cannot run it over gloo, where stages of one rank follow each other")
    KINDS.pop("zb-v")
    LOST.pop()


class Checkpointed(nn.Sequential):
    """Made again in the backward pass: all of it, or all but its products."""

    mode = "full"

    def forward(self, x):
        def policy(context, op, *arguments, **keywords):
            return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE
        more = {} if self.mode == "full" else {"context_fn": lambda: create_selective_checkpoint_contexts(policy)}
        return checkpoint(super().forward, x, use_reentrant=False, **more)


def part(mode="none"):
    made = (nn.Sequential if mode == "none" else Checkpointed)(
        nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * HIDDEN, HIDDEN), nn.Tanh())
    made.mode = mode
    return made


class Pipeline:
    """This rank's share of a model and its schedule, the same on every call."""

    def __init__(self, kind, rank, mode="none"):
        make, per_rank = KINDS[kind]
        count = RANKS * per_rank
        torch.manual_seed(0)
        modules = [part(mode) for _ in range(count)]
        self.mine = {1: [rank], 2: [rank, 2 * RANKS - 1 - rank] if kind == "zb-v" else [rank, rank + RANKS]}[per_rank]
        self.modules = [modules[i] for i in self.mine]
        stages = [PipelineStage(modules[i], i, count, torch.device("cpu")) for i in self.mine]
        self.schedule = make(stages[0] if per_rank == 1 else stages, COUNT, loss_fn=lambda y, t: (y - t).square().mean())
        self.first, self.last = 0 in self.mine, count - 1 in self.mine
        self.x, self.target = torch.randn(2, COUNT * ROWS, HIDDEN).unbind()

    def step(self):
        for module in self.modules:
            module.zero_grad()
        torch.manual_seed(11)
        losses = []
        inputs = (self.x,) if self.first else ()
        self.schedule.step(*inputs, **({"target": self.target, "losses": losses} if self.last else {}))
        return [loss.detach() for loss in losses] + [p.grad.clone() for module in self.modules for p in module.parameters()]


def begin(rank, folder, name):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{folder}/init-{name}")


def enter(rank, function, arguments):
    try:
        function(rank, *arguments)
    except BaseException:
        if "gloo" not in traceback.format_exc().splitlines()[-1]:  # another rank failed
            traceback.print_exc()
        raise


def spawn(function, *arguments):
    mp.spawn(enter, (function, arguments), nprocs=RANKS)


def run_kind(rank, folder, kind, addresses):
    begin(rank, folder, kind)
    # The first step of a schedule may try shapes out, and take random numbers for that.
    alone = Pipeline(kind, rank)
    first, expected = alone.step(), alone.step()
    assert same(alone.step(), expected), "the schedule alone is not the same twice"
    pipeline = Pipeline(kind, rank)
    with bt.Store(addresses[RANKS - 1 - rank], job=kind, rank=rank, size="48 MiB", chunk="256 KiB") as store:
        whole = bt.attach(pipeline.schedule, store)
        assert same(pipeline.step(), first) and same(pipeline.step(), expected), "measured only"
        assert not whole.residency.parked and store.stats()["parked"] == 0
        block = store.stats()["held_peak"] / whole.residency.without
        whole.detach()
        for prefetch in (1, 0, 3):
            level = (whole.residency.without + 1) // 2 + 1
            try:
                attachment = bt.attach(pipeline.schedule, store, cap=level, prefetch=prefetch, min_bytes=1 << 10)
            except ValueError as error:  # a rank by itself may need more to load that far ahead
                assert prefetch > 1 and f"cap: {level} blocks" in str(error), error
                for _ in range(STEPS):  # the other ranks go on
                    pipeline.step()
                continue
            before = store.stats()["parked"]
            store.reset_peak()
            for _ in range(STEPS):
                assert same(pipeline.step(), expected), f"rank {rank}, prefetch {prefetch}: other bits"
            stats, residency = store.stats(), attachment.residency
            assert residency.peak <= level and bool(residency.parked) == (residency.without > level), residency
            assert (stats["parked"] > before) == bool(residency.parked) and stats["kept"] == 0 == stats["lost"], stats
            # To the byte, but for tensors too small to leave.
            assert stats["held_peak"] <= level * block + RANKS * COUNT * 4096, (stats, level, block, residency)
            assert stats["held"] == 0 or stats["held"] < block, stats
            attachment.detach()
        assert same(pipeline.step(), expected) and "_ballast" not in vars(pipeline.schedule), "detached"
    dist.destroy_process_group()


def run_checkpointed(rank, folder, kind, mode, addresses):
    """Schedules whose stages make some of what they save again, at stores with room and at full ones."""
    begin(rank, folder, f"{kind}-{mode}")
    pipeline = Pipeline(kind, rank, mode)
    pipeline.step()
    expected = pipeline.step()
    for size, full in (("48 MiB", False), ("128 KiB", True)):
        with bt.Store(addresses[RANKS - 1 - rank], job=f"{kind}-{mode}", rank=rank, size=size, chunk="64 KiB") as store:
            whole = bt.attach(pipeline.schedule, store)
            whole.detach()
            attachment = bt.attach(pipeline.schedule, store, cap=max(whole.residency.needed, 2), min_bytes=1 << 10)
            for _ in range(STEPS):
                assert same(pipeline.step(), expected), f"rank {rank}, {mode}, {size}: other bits"
            stats = store.stats()
            # What a checkpoint keeps it keeps itself, out of sight of hooks.
            parks = bool(attachment.residency.parked) and mode == "none"
            assert bool(stats["parked"]) == parks and bool(stats["kept"]) == (parks and full), stats
            attachment.detach()
    dist.destroy_process_group()


def run_without_size(rank, folder, addresses):
    """Nothing is said of how much: the first step is measured."""
    begin(rank, folder, "no-size")
    pipeline = Pipeline("1f1b", rank)
    pipeline.step()
    expected = pipeline.step()
    with bt.Store(addresses[RANKS - 1 - rank], job="no-size", rank=rank, chunk="256 KiB") as store:
        bt.attach(pipeline.schedule, store, cap=2, min_bytes=1 << 10)
        for _ in range(4):
            assert same(pipeline.step(), expected)
        assert (store.stats()["parked"] > 0) == (rank < 2) and (store.size > 0) == (rank < 2), store.stats()
    dist.destroy_process_group()


def run_lost(rank, folder, kind, addresses, pids, on_loss, at):
    """The store that rank 0 parks at is killed after its at-th action of a step."""
    begin(rank, folder, f"lost-{kind}-{on_loss}-{at}")
    pipeline = Pipeline(kind, rank)
    pipeline.step()
    expected = pipeline.step()
    store = bt.Store(addresses[RANKS - 1 - rank], job="lost", rank=rank, size="48 MiB", chunk="256 KiB", deadline=5)
    attachment = bt.attach(pipeline.schedule, store, cap=2, min_bytes=1 << 10, on_loss=on_loss)
    assert same(pipeline.step(), expected)
    if rank == 0:
        count, advance = [0], attachment._advance

        def killing(*action):
            count[0] += 1
            if count[0] == at:
                os.kill(pids[RANKS - 1], 9)
            advance(*action)

        attachment._advance = killing
    assert same(pipeline.step(), expected), f"rank {rank}: other bits in the step of the loss"
    if rank == 0:
        attachment._advance = advance
    assert same(pipeline.step(), expected), f"rank {rank}: other bits after the loss"
    if rank == 0:
        print(f"ok {kind}: a store killed at action {at}; {store.stats()['lost']} lost, {store.stats()['recomputed']} again",
              flush=True)
    store.close()
    dist.destroy_process_group()


def run_raised(rank, folder, addresses, pids):
    """Without recomputation a loss is an error out of step() that names the store; never a hang."""
    begin(rank, folder, "raised")
    pipeline = Pipeline("1f1b", rank)
    store = bt.Store(addresses[RANKS - 1 - rank], job="raised", rank=rank, size="48 MiB", chunk="256 KiB", deadline=5)
    attachment = bt.attach(pipeline.schedule, store, cap=2, min_bytes=1 << 10)
    pipeline.step()
    dist.barrier()
    if rank > 0:
        with contextlib.suppress(Exception):  # rank 0 ends in the middle of it
            pipeline.step()
    else:
        advance = attachment._advance

        def killing(kind, stage, micro_batch):
            if (kind, micro_batch) == ("B", 0):
                os.kill(pids[RANKS - 1], 9)
            advance(kind, stage, micro_batch)

        attachment._advance = killing
        try:
            pipeline.step()
        except Exception as error:
            cause = error
            while cause is not None and not isinstance(cause, bt.BlockLost):
                cause = cause.__cause__ or cause.__context__
            text = f"{error} {cause}"
            assert addresses[RANKS - 1] in text and "lost" in text, text
            print("ok a lost block is an error of the step", flush=True)
        else:
            raise AssertionError("a block was lost, and nobody said so")
    os._exit(0)  # the others wait for this rank


def run_mistakes(rank, folder, addresses):
    begin(rank, folder, "mistakes")
    pipeline = Pipeline("interleaved", rank)
    with bt.Store(addresses[rank], job="mistakes", rank=rank, size="4 MiB") as store:
        def refused(kind, words, **options):
            try:
                bt.attach(options.pop("schedule", pipeline.schedule), store, **options)
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)

        refused(ValueError, "cap: 0", cap=0)
        refused(ValueError, "cap: 1 blocks are too few to load 4 actions ahead", cap=1, prefetch=4)
        refused(ValueError, "prefetch: -1", prefetch=-1)
        refused(ValueError, "on_loss: 'never'", on_loss="never")
        refused(TypeError, "no schedule", schedule=object())
        bt.attach(pipeline.schedule, store)
        refused(ValueError, "attached to a store already")
    compiled = PipelineStage(torch.compile(part(), backend="eager"), rank, RANKS, torch.device("cpu"))
    try:
        bt.attach(Schedule1F1B(compiled, COUNT, loss_fn=nn.MSELoss()), store)
    except ValueError as error:
        assert "torch.compile" in str(error) and f"stage {rank}" in str(error), error
    else:
        raise AssertionError("a compiled stage was attached")
    dist.destroy_process_group()


def main():
    with scratch() as folder:
        stores = [a_store(folder, name=f"store{i}", capacity="512 MiB") for i in range(RANKS)]
        running = [store.__enter__() for store in stores]
        addresses = [service.address for service in running]
        for kind in KINDS:
            spawn(run_kind, folder, kind, addresses)
            print(f"ok {kind}: the same bits, and no more blocks than the cap", flush=True)
        # PyTorch refuses a second backward pass through selective checkpoints, as split ones need it.
        every = [(kind, mode) for kind, mode in itertools.product(KINDS, ("none", "full", "selective"))
                 if mode != "selective" or kind not in ("interleaved-zb", "zb-v")]
        few = ("1f1b", "none"), ("1f1b", "full"), ("1f1b", "selective"), ("interleaved", "selective")
        for kind, mode in every if os.environ.get("BALLAST_SOAK") else few:
            spawn(run_checkpointed, folder, kind, mode, addresses)
        print("ok stages that are checkpointed, in full or selectively; full stores", flush=True)
        spawn(run_without_size, folder, addresses)
        print("ok without a size the first step is measured", flush=True)
        spawn(run_mistakes, folder, addresses)
        print("ok mistakes are named", flush=True)
        for i, (kind, at) in enumerate(LOST):
            with a_store(folder, name=f"dies{i}") as dies:
                spawn(run_lost, folder, kind, [*addresses[:-1], dies.address],
                      [*(service.pid for service in running[:-1]), dies.pid], "recompute", at)
        with a_store(folder, name="dies-too") as dies:
            spawn(run_raised, folder, [*addresses[:-1], dies.address], [0, 0, 0, dies.pid])
        for store in reversed(stores):
            store.__exit__(None, None, None)


if __name__ == "__main__":
    main()
