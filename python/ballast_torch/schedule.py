# SPDX-License-Identifier: Apache-2.0
"""Orders of pipelines that `ballastctl` makes, for torch.distributed.pipelining to run."""

from __future__ import annotations

import collections
import csv
import dataclasses
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from typing import Any

from .programs import find_program

_CELL = re.compile(r"(\d+)([FBIW])\d+")  # those of slices, and E, L and R of our own, are others


def _ballastctl(*arguments: str) -> str:
    done = subprocess.run([find_program("ballastctl"), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip() or f"ballastctl {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def _text(value: Any) -> str:
    """One number or several, as the flags of ballastctl have them."""
    return ",".join(str(part) for part in value) if isinstance(value, Iterable) else str(value)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What every rank computes in a step, in order. Equal on all ranks that ask for the same.

    Attributes:
        name: of the schedule, as `v-half`.
        micro_batches: of a step.
        csv: the order as PyTorch's pipelining reads it (`compute_only`): a row per rank, a cell as `3F0` per operation.
        placement: per rank the stages of PyTorch that it holds, in the order of the model; a `PipelineStage` for each.
        peak: per rank how many blocks it keeps at a time as simulated, at most. A block is what the forward pass of a
            micro-batch on one of the rank's stages saves, from its F to its B or W, as in `attach(cap=)`.
    """

    name: str
    micro_batches: int
    csv: str
    placement: tuple[tuple[int, ...], ...]
    peak: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """Of PyTorch's stages, all ranks together: what `PipelineStage(num_stages=)` takes."""
        return sum(len(held) for held in self.placement)

    def load(self, runtime: Any) -> None:
        """Gives the order to a `_PipelineScheduleRuntime`, which adds sends and receives (and what FSDP needs).

        Raises:
            ValueError: it has other stages, or another number of ranks or micro-batches.
        """
        stages = sorted(stage.stage_index for stage in runtime._stages)
        wrong = [f"{what} {theirs}, the order has {ours}" for what, theirs, ours in (
            ("the ranks are", runtime.pp_group_size, len(self.placement)),
            ("the stages of all ranks are", runtime._num_stages, self.num_stages),
            ("the micro-batches are", runtime._n_microbatches, self.micro_batches)) if theirs != ours]
        if not wrong and stages != list(self.placement[runtime.rank]):
            wrong = [f"the stages of rank {runtime.rank} are {stages}, "
                     f"the order has {list(self.placement[runtime.rank])}"]
        if wrong:
            raise ValueError(f"{self.name}: {'; '.join(wrong)}")
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            file.write(self.csv)
            file.flush()
            runtime._load_csv(file.name, format="compute_only")

    def runtime(self, stages: Any, loss_fn: Any = None, **keywords: Any) -> Any:
        """A schedule to `step()` with this order.

        PyTorch 2.8 does not scale the gradients of orders with split backward passes: they come out `micro_batches`
        times as large as with a fused one (`scale_grads`).

        Args:
            stages: the `PipelineStage`s of this rank, those of `placement[rank]` (or a single one).
            loss_fn: and `keywords`: as `_PipelineScheduleRuntime` takes them.
        """
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        stages = list(stages) if isinstance(stages, Iterable) and not hasattr(stages, "stage_index") else [stages]
        made = _PipelineScheduleRuntime(stages, self.micro_batches, loss_fn=loss_fn, **keywords)
        made._ballast_schedule = self.name
        self.load(made)
        return made


def _placement(name: str, text: str, micro_batches: int) -> tuple[tuple[int, ...], ...]:
    placement = []
    for row in csv.reader(text.splitlines()):
        cells = [_CELL.fullmatch(cell) for cell in row if cell]
        forwards = collections.Counter(int(cell[1]) for cell in cells if cell is not None and cell[2] == "F")
        if None in cells or set(forwards.values()) != {micro_batches}:  # the others pass in another copy of the model
            raise ValueError(f"{name}: PyTorch can express neither slices, nor two copies of a model, nor blocks that "
                             "are evicted or made again")
        placement.append(tuple(sorted(forwards)))
    return tuple(placement)


def _peaks(text: str, placement: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The simulator counts what a device saves for a micro-batch as one, whatever its number of stages."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(text)
        file.flush()
        shown = json.loads(_ballastctl("schedule", "show", "--schedule", file.name, "-o", "json"))
    return tuple(round(peak * len(held)) for peak, held in zip(shown["peak"], placement))


def schedule(name: str, stages: int, micro_batches: int, *, chunks: int | None = None, group: int | None = None,
             cost: Iterable[float] | None = None, memory: float | Iterable[float] | None = None,
             pooled: bool = False) -> Schedule:
    """An order that `ballastctl schedule export` makes.

        order = bt.schedule("v-half", 4, 8)
        mine = [PipelineStage(part(i), i, order.num_stages, device) for i in order.placement[rank]]
        order.runtime(mine, loss_fn=loss).step(...)

    Searched orders (zb-*, v-*, adaptive) are the same on every rank and machine, and take as long there.

    Args:
        name: `1f1b`, `zb-h1`, `v-half`, ... (`ballastctl schedule list`), or a CSV file of an order.
        stages: ranks of the pipeline, which `ballastctl` calls stages; each holds `chunks` of PyTorch's.
        micro_batches: of a step.
        chunks: 1, or 2 for V-shaped and interleaved schedules.
        group: micro-batches of a group (grouped-interleaved).
        cost: times of F, I, W and a boundary (1, 1, 1, 0), in any unit; a fifth is that of a recomputation.
        memory: limit of zb-* and adaptive: what a rank keeps at a time, 1 for all that it saves for one micro-batch;
            one for all ranks or one for each.
        pooled: the order for balancing: a rank may keep more than `memory` where others keep less (see `attach`).

    Raises:
        ValueError: an unknown name, wrong numbers, or what PyTorch cannot express (seq1f1b, chimera, dualpipe).
        FileNotFoundError: there is no `ballastctl`.
    """
    arguments = ["--schedule", name, "--stages", str(stages), "--micro-batches", str(micro_batches)]
    for flag, value in (("--chunks", chunks), ("--group", group), ("--cost", cost), ("--memory", memory)):
        arguments += [] if value is None else [flag, _text(value)]
    text = _ballastctl("schedule", "export", "--format", "compute_only", *arguments, *(["--pooled"] if pooled else []))
    placement = _placement(name, text, micro_batches)
    return Schedule(name, micro_batches, text, placement, _peaks(text, placement))
