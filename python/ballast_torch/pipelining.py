# SPDX-License-Identifier: Apache-2.0
"""Levels the memory of a schedule of torch.distributed.pipelining, as BPipe does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from .parking import refuse_compile
from .residency import BACKWARD, FORWARD, WEIGHT, Action, Residency, plan_residency
from .saved import Recompute, Region, tensors_of
from .store import Store, parse_bytes

_KINDS = {"FORWARD": FORWARD, "FULL_BACKWARD": BACKWARD, "BACKWARD_INPUT": BACKWARD, "BACKWARD_WEIGHT": WEIGHT}


def _flat(actions: list[Any]) -> list[Any]:
    """Without pauses, and what overlaps one after the other."""
    flat = []
    for action in actions:
        if action is not None:
            flat += _flat(list(action.sub_actions)) if getattr(action, "sub_actions", None) else [action]
    return flat


def stages_of(schedule: Any) -> list[Any]:
    """The stages of this rank."""
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if stages[0] is None:
        raise TypeError(f"{type(schedule).__name__} is no schedule of torch.distributed.pipelining")
    return list(stages)


def _single_stage_order(schedule: Any) -> list[Action] | None:
    """Of the schedules with loops of their own. What their _get_pipeline_order() says of the last rank is not what they run
    (PyTorch 2.15 begins with micro-batch 1 there)."""
    stage, count = schedule._stage.stage_index, schedule._n_microbatches
    warm_up = {"ScheduleGPipe": count, "Schedule1F1B": min(count, schedule._num_stages - stage)}.get(type(schedule).__name__)
    if warm_up is None:
        return None
    order = [(FORWARD, stage, micro_batch) for micro_batch in range(warm_up)]
    for micro_batch in range(count):
        order.append((BACKWARD, stage, micro_batch))
        if warm_up + micro_batch < count:
            order.append((FORWARD, stage, warm_up + micro_batch))
    return order


def action_list(schedule: Any) -> list[Action] | None:
    """What this rank computes in a step, in order; None: the schedule does not say."""
    if hasattr(schedule, "_stage"):
        return _single_stage_order(schedule)
    order = getattr(schedule, "pipeline_order", None)
    if not order:
        return None
    rank = stages_of(schedule)[0].group_rank
    # The first stage has no inputs to make gradients for: all of its backward pass is that of the weights.
    return [(_KINDS[action.computation_type.name], action.stage_index, action.microbatch_index)
            for action in _flat(order[rank]) if action.computation_type.name in _KINDS
            and not (action.computation_type.name == "BACKWARD_INPUT" and action.stage_index == 0)]


class Attachment:
    """A schedule whose blocks are parked. `detach()` leaves it as it was.

    Attributes:
        residency: what is parked and when it is loaded (`residency.parked`, `.peak`, `.without`); None until the first step
            of a schedule that does not say its order has ended.
    """

    def __init__(self, schedule: Any, store: Store, *, cap: int | None, prefetch: int, min_bytes: int, on_loss: str) -> None:
        self._schedule, self._store, self._cap, self._prefetch = schedule, store, cap, prefetch
        self._min_bytes, self._on_loss = min_bytes, on_loss
        self._stages = stages_of(schedule)
        self.residency: Residency | None = None
        self._index: dict[Action, int] = {}
        self._recorded: list[Action] = []
        self._regions: dict[tuple[int, int], Region] = {}
        self._restore: list[tuple[Any, str]] = []
        order = action_list(schedule)
        if order:
            self._plan(order)
        self._wrap(schedule, "step", self._step)
        for stage in self._stages:
            self._wrap(stage, "forward_one_chunk", functools.partial(self._forward, stage))
            self._wrap(stage, "forward_maybe_with_nosync", functools.partial(self._compute, stage))
            self._wrap(stage, "backward_one_chunk", functools.partial(self._backward, BACKWARD, stage))
            self._wrap(stage, "backward_weight_one_chunk", functools.partial(self._backward, WEIGHT, stage))
        self._current: Region | None = None

    def __repr__(self) -> str:
        return f"<ballast_torch.Attachment cap={self._cap} {self.residency}>"

    def detach(self) -> None:
        """The schedule is as it was. Between steps."""
        for owner, name in self._restore:
            if name in vars(owner):
                delattr(owner, name)
        self._restore.clear()
        vars(self._schedule).pop("_ballast", None)

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(functools.partial(wrapper, original)))
        self._restore.append((owner, name))

    def _plan(self, order: list[Action]) -> None:
        cap = len(order) if self._cap is None else self._cap
        self.residency = plan_residency(order, cap, self._prefetch)
        self._index = {action: at for at, action in reversed(list(enumerate(order)))}
        if self.residency.needed > cap:
            raise ValueError(f"cap: {cap} blocks are too few to load {self._prefetch} actions ahead: at least "
                             f"{self.residency.needed} are here at a time, or prefetch less")

    # ---- in place of the schedule's and the stages' own

    def _step(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        with self._store._locked():
            self._store._begin_region()
        self._recorded.clear()
        try:
            result = original(*arguments, **keywords)
        finally:
            self._regions.clear()
        if self.residency is None and self._recorded:
            self._plan(list(self._recorded))
        return result

    def _advance(self, kind: str, stage: Any, micro_batch: int) -> None:
        action = kind, stage.stage_index, micro_batch
        self._recorded.append(action)
        with self._store._locked():
            self._store._collect()
        at = self._index.get(action)
        for block in self.residency.loads.get(at, ()) if self.residency is not None else ():
            region = self._regions.get(block)
            if region is not None:
                region.load()

    def _forward(self, stage: Any, original: Callable[..., Any], micro_batch: int, *arguments: Any, **keywords: Any) -> Any:
        if not stage.has_backward or not torch.is_grad_enabled():
            return original(micro_batch, *arguments, **keywords)
        self._advance(FORWARD, stage, micro_batch)
        block = stage.stage_index, micro_batch
        self._current = self._regions[block] = Region(
            self._store, min_bytes=self._min_bytes, prefetch=0, forgets=False,
            parks=self.residency is not None and block in self.residency.parked)
        try:
            return original(micro_batch, *arguments, **keywords)
        finally:
            region, self._current = self._current, None
            region.finish()

    def _compute(self, stage: Any, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        region = self._current
        if region is None:  # shapes are tried out
            return original(*arguments, **keywords)
        refuse_compile()
        # What came from the stage before lives in a buffer that this stage keeps anyway.
        inputs = tensors_of(arguments, keywords)
        region.leave(inputs)
        if self._on_loss == "recompute" and region.parks:
            region.recompute = Recompute(original, arguments, keywords)
        with saved_tensors_hooks(region.pack, region.unpack):
            outputs = original(*arguments, **keywords)
        if region.recompute is not None:
            region.recompute.made(outputs)
        return outputs

    def _backward(self, kind: str, stage: Any, original: Callable[..., Any], micro_batch: int, *arguments: Any,
                  **keywords: Any) -> Any:
        if stage.has_backward:
            self._advance(kind, stage, micro_batch)
        result = original(micro_batch, *arguments, **keywords)
        if self.residency is not None:
            block = self.residency.drops.get(self._index.get((kind, stage.stage_index, micro_batch)))
            region = self._regions.get(block)
            if region is not None:
                region.forget()
        return result


def attach(schedule: Any, store: Store, *, cap: int | None = None, prefetch: int = 1, min_bytes: int | str = 1 << 16,
           on_loss: str = "raise") -> Attachment:
    """Levels a schedule of torch.distributed.pipelining: this rank keeps at most `cap` blocks.

    A block is what the forward pass of a micro-batch on one of the rank's stages saves. The action list of the schedule
    says which blocks there would be too many of: the newest are parked as their forward pass goes on, and loaded
    `prefetch` actions ahead of their backward pass. As BPipe, rank r of p parks at the store of rank p-1-r, whose memory
    fills least; a rank that never has more than `cap` parks nothing and may attach all the same.

    Args:
        schedule: `ScheduleGPipe`, `Schedule1F1B`, `ScheduleInterleaved1F1B`, `ScheduleZBVZeroBubble`, ..., or a
            `_PipelineScheduleRuntime` that loaded an order (see `schedule`). Any other that has no action list is recorded
            in its first step and leveled from the second.
        store: where to.
        cap: blocks kept; None: all (what they take is measured, `store.stats()["held_peak"]`).
        prefetch: actions; 0 loads when the backward pass begins.
        min_bytes: smaller storages stay.
        on_loss: `"raise"` (BlockLost out of `schedule.step`), or `"recompute"`: the forward pass of a lost block is run
            again, with the inputs that the stage keeps.

    Returns:
        The attachment: `.residency` says what was planned, `.detach()` ends it.

    Raises:
        ValueError: `cap` is too small for `prefetch`, the schedule is attached already, a stage is compiled.
        TypeError: not a schedule.
    """
    if on_loss not in ("raise", "recompute"):
        raise ValueError(f"on_loss: {on_loss!r} is neither 'raise' nor 'recompute'")
    stages = stages_of(schedule)
    if "_ballast" in vars(schedule):
        raise ValueError("the schedule is attached to a store already; detach() that one first")
    for stage in stages:
        if type(stage.submod).__name__ == "OptimizedModule":
            raise ValueError(f"stage {stage.stage_index} is compiled with torch.compile, whose saved tensors cannot be "
                             "parked; attach before, to the module itself")
    attachment = Attachment(schedule, store, cap=cap, prefetch=prefetch, min_bytes=parse_bytes(min_bytes), on_loss=on_loss)
    vars(schedule)["_ballast"] = attachment
    return attachment
