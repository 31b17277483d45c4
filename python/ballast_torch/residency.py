# SPDX-License-Identifier: Apache-2.0
"""Which micro-batches stay and which are parked, from the order of a pipeline's actions. No tensors, no input or output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"  # B: a whole backward pass, or that of the inputs (I) before its W

Block = tuple[int, int]  # (stage, micro-batch)
Action = tuple[str, int, int]  # (FORWARD | BACKWARD | WEIGHT, stage, micro-batch)


@dataclasses.dataclass(frozen=True)
class Residency:
    """What a rank does with its blocks, one for each forward pass of a micro-batch on a stage.

    Attributes:
        parked: blocks that leave with their forward pass.
        loads: before which action (its index) loads of which blocks begin.
        drops: after which action (its index) a block is let go of again, until its next load.
        peak: blocks that are here at a time, at most: kept, or being loaded, or loaded.
        without: the same if none were parked.
        needed: the smallest cap that can be kept with this prefetch.
    """

    parked: frozenset[Block]
    loads: dict[int, tuple[Block, ...]]
    drops: dict[int, Block]
    peak: int
    without: int
    needed: int


@dataclasses.dataclass
class _Life:
    """Of a block: its forward pass, and when it is used after that."""

    forward: int
    uses: list[int] = dataclasses.field(default_factory=list)
    windows: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # it has to be here, both ends included
    gaps: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # it may be elsewhere, without the end

    def cut(self, prefetch: int) -> None:
        at = self.forward
        for use in self.uses:
            begin = max(use - prefetch, at + 1, self.forward + 1)
            if self.windows and begin <= self.windows[-1][1] + 1:
                self.windows[-1] = self.windows[-1][0], use
            else:
                first = self.forward if not self.windows else self.windows[-1][1] + 1
                if first < begin:
                    self.gaps.append((first, begin))
                self.windows.append((begin, use))
            at = use

    def gap_at(self, at: int) -> tuple[int, int] | None:
        return next((gap for gap in self.gaps if gap[0] <= at < gap[1]), None)


def _lives(order: list[Action]) -> dict[Block, _Life]:
    lives: dict[Block, _Life] = {}
    for at, (kind, stage, micro_batch) in enumerate(order):
        block = stage, micro_batch
        if kind == FORWARD:
            if block in lives:
                raise ValueError(f"stage {stage} runs the forward pass of micro-batch {micro_batch} twice")
            lives[block] = _Life(at)
        elif block in lives:
            lives[block].uses.append(at)
        else:
            raise ValueError(f"stage {stage} runs the backward pass of micro-batch {micro_batch} before its forward pass")
    for (stage, micro_batch), life in lives.items():
        if not life.uses:
            raise ValueError(f"stage {stage} runs no backward pass of micro-batch {micro_batch}")
    return lives


def plan_residency(order: Iterable[Action], cap: int, prefetch: int = 1) -> Residency:
    """Parks as few blocks as keep at most `cap` here, the newest first, and loads each `prefetch` actions ahead.

    A block that stays is here from its forward pass to its last use. One that is parked is here from `prefetch` actions
    before a use to that use; between its backward pass for inputs and the one for weights it may be elsewhere again. Where
    there would be more than `cap` at an action, the one leaves whose use is farthest away, which is what BPipe evicts (ICML
    2023, section 3). As in interval scheduling on `cap` machines, few are parked that way.
    """
    order = list(order)
    if cap < 1:
        raise ValueError(f"cap: {cap} is less than 1")
    if prefetch < 0:
        raise ValueError(f"prefetch: {prefetch} is less than 0")
    lives = _lives(order)
    must, stay = [0] * len(order), [0] * len(order)
    for life in lives.values():
        life.cut(prefetch)
        for begin, last in life.windows:
            for at in range(begin, last + 1):
                must[at] += 1
        for begin, end in life.gaps:
            for at in range(begin, end):
                stay[at] += 1
    without = max((a + b for a, b in zip(must, stay)), default=0)
    parked: set[Block] = set()
    for at in range(len(order)):
        here = {block: gap[1] for block, life in lives.items() if block not in parked and (gap := life.gap_at(at))}
        while here and must[at] + stay[at] > cap:
            farthest = max(here, key=lambda block: (here[block], block))
            del here[farthest]
            parked.add(farthest)
            for begin, end in lives[farthest].gaps:
                for other in range(begin, end):
                    stay[other] -= 1
    loads: dict[int, list[Block]] = {}
    for block in sorted(parked):
        for begin, _ in lives[block].windows:
            loads.setdefault(begin, []).append(block)
    return Residency(frozenset(parked), {at: tuple(blocks) for at, blocks in loads.items()},
                     {lives[block].windows[i][1]: block for block in parked for i in range(len(lives[block].windows) - 1)},
                     max((a + b for a, b in zip(must, stay)), default=0), without, max(must, default=0))
