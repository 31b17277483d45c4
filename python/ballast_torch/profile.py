# SPDX-License-Identifier: Apache-2.0
"""What operations of a pipeline take in PyTorch, as a profile that `ballastctl plan | simulate | estimate` read."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import saved_tensors_hooks

from ._xxh3 import xxh3
from .pipelining import stages_of
from .saved import STRANGE, tensors_of, why_not

LEAST = 1e-9  # seconds that an operation takes: PyTorch has nothing to do for some, as for the first stage's I
BARRIERS = 9  # by which clocks of several machines are compared
_OP_TYPES = "FBIW"  # their numbers in lib/schedule/ir/op.h
_NAMES = {"Schedule1F1B": "1f1b", "ScheduleGPipe": "gpipe", "ScheduleInterleaved1F1B": "interleaved",
          "ScheduleZBVZeroBubble": "zb-v", "ScheduleDualPipeV": "dualpipe-v"}


@dataclasses.dataclass(frozen=True)
class Model:
    """What a module does not say of itself, in the words of a job file's `model` (docs/configuration.md)."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    tied: bool

    @property
    def text(self) -> str:
        """The model's identity: the job that reads the profile must have the same (lib/plan/profile/profile.c)."""
        return (f"{self.family}: layers {self.layers}, hidden {self.hidden}, heads {self.heads}/{self.kv_heads} of "
                f"{self.head_dim}, ffn {self.ffn}, vocab {self.vocab}, seq {self.seq}{', tied' if self.tied else ''}")

    def shares(self, layers: int, head: bool, flash: bool) -> tuple[float, float]:
        """By FLOPs, of a stage: of I in a backward pass, and of a recomputation, which makes all but the last product,
        in F (lib/model/flops.c)."""
        query, ffn = self.heads * self.head_dim, self.hidden * self.ffn
        products = self.hidden * (2 * query + 2 * self.kv_heads * self.head_dim) + \
            (3 if self.family == "llama" else 2) * ffn
        scores = (self.seq + 1) / 2 * query  # causal
        weight = layers * products + (self.hidden * self.vocab if head else 0)
        given = weight + layers * (5 if flash else 4) * scores
        return given / (given + weight), 1 - ffn / (layers * (products + 2 * scores))


@dataclasses.dataclass
class Operation:
    kind: str  # one of _OP_TYPES
    stage: int
    micro_batch: int
    begin: float  # seconds of this machine's clock
    end: float
    cost: float  # seconds; without those that other processes had the core


class _Clock:
    """Of a device. Where one thread computes on a CPU, costs are its processor time: ranks may share cores."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._alone = torch.get_num_threads() == 1

    def begin_step(self) -> None:
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
            self._base, self._at = self.mark(), time.monotonic()

    def mark(self) -> Any:
        if self._cuda is None:
            at = time.monotonic()
            return at, time.thread_time() if self._alone else at
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._cuda))
        return event

    def seconds(self, mark: Any) -> tuple[float, float]:
        """When it was, and of the clock of costs. Of a CUDA device after the step, when nothing runs."""
        if self._cuda is None:
            return mark
        at = self._at + self._base.elapsed_time(mark) / 1e3
        return at, at


class _Recorder:
    """Around a schedule and its stages on this rank."""

    def __init__(self, schedule: Any) -> None:
        self._schedule, self.stages = schedule, stages_of(schedule)
        self._clock = _Clock(self.stages[0].device)
        self._marks: list[list[Any]] = []  # kind, stage, micro-batch, begin, end
        self.bytes: dict[int, int] = {stage.stage_index: 0 for stage in self.stages}  # of a block
        self._restore: list[tuple[Any, str]] = []

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any], *arguments: Any) -> None:
        original, had = getattr(owner, name), vars(owner).get(name)
        setattr(owner, name, functools.wraps(original)(functools.partial(wrapper, *arguments, original)))
        self._restore.append((owner, name, had))

    @contextlib.contextmanager
    def _wrapped(self, measures_bytes: bool) -> Iterator[None]:
        try:
            if measures_bytes:
                for stage in self.stages:
                    self._wrap(stage, "forward_maybe_with_nosync", self._measure, stage.stage_index)
            else:
                for stage in self.stages:
                    self._wrap(stage, "forward_one_chunk", self._compute, "F", stage)
                    self._wrap(stage, "backward_one_chunk", self._compute, "B", stage)
                    self._wrap(stage, "backward_weight_one_chunk", self._compute, "W", stage)
                self._wrap(self._schedule, "_maybe_compute_loss", self._loss)
            yield
        finally:
            for owner, name, had in reversed(self._restore):
                delattr(owner, name) if had is None else setattr(owner, name, had)
            self._restore.clear()

    def _compute(self, kind: str, stage: Any, original: Callable[..., Any], micro_batch: int, *arguments: Any,
                 **keywords: Any) -> Any:
        if kind == "B" and not keywords.get("full_backward", True):
            kind = "I"
        begin = self._clock.mark()
        try:
            return original(micro_batch, *arguments, **keywords)
        finally:
            self._marks.append([kind, stage.stage_index, micro_batch, begin, self._clock.mark()])

    def _loss(self, original: Callable[..., Any], stage: Any, *arguments: Any, **keywords: Any) -> Any:
        """Belongs to the F before it."""
        result = original(stage, *arguments, **keywords)
        if stage.is_last and self._marks and self._marks[-1][0] == "F":
            self._marks[-1][4] = self._clock.mark()
        return result

    def _measure(self, stage: int, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Of what autograd saves: every storage once, without parameters and inputs, as attach() does."""
        inputs = {tensor.untyped_storage()._cdata for tensor in tensors_of(arguments, keywords)}
        found: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if why_not(tensor, 0) not in ("own", "part", *STRANGE):
                storage = tensor.untyped_storage()
                if storage._cdata not in inputs:
                    found[storage._cdata] = storage.nbytes()
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            result = original(*arguments, **keywords)
        self.bytes[stage] = max(self.bytes[stage], sum(found.values()))
        return result

    def measure_bytes(self, step: Callable[[], Any]) -> None:
        with self._wrapped(True):
            step()

    def time(self, step: Callable[[], Any]) -> tuple[float, list[Operation]]:
        """Seconds of a step, and its operations."""
        self._marks.clear()
        self._clock.begin_step()
        with self._wrapped(False):
            begin = time.monotonic()
            step()
            if self.stages[0].device.type == "cuda":
                torch.cuda.synchronize(self.stages[0].device)
            seconds = time.monotonic() - begin
        operations = []
        for kind, stage, micro_batch, *marks in self._marks:
            (begin, before), (end, after) = map(self._clock.seconds, marks)
            operations.append(Operation(kind, stage, micro_batch, begin, end, max(after - before, LEAST)))
        return seconds, operations


@dataclasses.dataclass
class _Rank:
    """What a rank tells the others."""

    machine: str
    cores: int
    threads: int
    barriers: list[float]  # when they ended
    bytes: dict[int, int]
    seconds: list[float]  # of steps
    steps: list[list[Operation]]


def _machine() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    return os.uname().nodename


def _align(ranks: list[_Rank]) -> None:
    """All times as rank 0's clock would have them: machines left a barrier together."""
    for rank in ranks:
        if rank.machine != ranks[0].machine:
            ahead = statistics.median(b - a for a, b in zip(ranks[0].barriers, rank.barriers))
            for operation in (operation for step in rank.steps for operation in step):
                operation.begin, operation.end = operation.begin - ahead, operation.end - ahead


def _boundaries(step: list[list[Operation]]) -> list[float]:
    """Seconds between an operation and one on another rank that waited for it, of all that did."""
    backward = "BI"
    ends = {(operation.kind in backward, operation.stage, operation.micro_batch): (rank, operation.end)
            for rank, operations in enumerate(step) for operation in operations if operation.kind != "W"}
    found = []
    for rank, operations in enumerate(step):
        free = 0.0
        for operation in operations:
            later = operation.kind in backward
            needs = later, operation.stage + (1 if later else -1), operation.micro_batch
            source, end = ends.get(needs, (rank, 0.0)) if operation.kind != "W" else (rank, 0.0)
            if source != rank and free <= end <= operation.begin:
                found.append(operation.begin - end)
            free = operation.end
    return found


def _order(ranks: list[list[Operation]]) -> str:
    """The number of an order, as lib/plan/profile/profile.c has it."""
    digest = len(ranks)
    for rank, operations in enumerate(ranks):
        for o in operations:
            digest = xxh3(struct.pack("<5I", rank, _OP_TYPES.index(o.kind), o.stage, o.micro_batch, 0), digest)
    return f"{digest or 1:016x}"


def _chunks(ranks: list[_Rank], model: Model, layers: Sequence[int], flash: bool,
            input_share: float | None) -> list[dict[str, Any]]:
    """Costs of each stage of PyTorch: means of a step, of these the median over steps."""
    means: dict[tuple[int, str], list[float]] = {}
    for rank in ranks:
        for step in rank.steps:
            costs: dict[tuple[int, str], list[float]] = {}
            for operation in step:
                costs.setdefault((operation.stage, operation.kind), []).append(operation.cost)
            for key, values in costs.items():
                means.setdefault(key, []).append(statistics.fmean(values))
    chunks, first = [], 0
    for stage, count in enumerate(layers):
        seen = {kind: statistics.median(means[stage, kind]) for kind in _OP_TYPES if (stage, kind) in means}
        share, again = model.shares(count, stage + 1 == len(layers), flash)
        share = share if input_share is None else input_share
        whole = seen.get("B", 0.0)
        chunks.append({
            "stage": next(r for r, rank in enumerate(ranks) if stage in rank.bytes), "first_layer": first,
            "layers": count, "F": seen["F"], "I": max(seen.get("I", share * whole), LEAST),
            "W": max(seen.get("W", (1 - share) * whole), LEAST), "R": again * seen["F"], "measured_I": "I" in seen,
            "measured_R": False})
        first += count
    return chunks


def _document(ranks: list[_Rank], model: Model, layers: Sequence[int], input_share: float | None,
              head: dict[str, Any]) -> dict[str, Any]:
    """A profile of version 1 (lib/plan/profile/profile.h)."""
    _align(ranks)
    steps = [[rank.steps[i] for rank in ranks] for i in range(len(ranks[0].steps))]
    starts = [min(operation.begin for operations in step for operation in operations) for step in steps]
    ends = [[max(o.end for o in operations) - start for operations in step] for step, start in zip(steps, starts)]
    makespans = [max(each) for each in ends]
    seconds = [max(rank.seconds[i] for rank in ranks) for i in range(len(steps))]
    kept = sorted(range(len(steps)), key=makespans.__getitem__)[(len(steps) - 1) // 2]
    together = head["device"] == "host" and len({rank.machine for rank in ranks}) == 1
    cores = min(rank.cores for rank in ranks) if together else 0
    # Where ranks take turns on cores most operations waited for a core, too.
    quantile = 0.1 if 0 < cores < len(ranks) * ranks[0].threads else 0.5
    boundaries = [sorted(_boundaries(step)) or [0.0] for step in steps]
    latencies = [each[int(quantile * (len(each) - 1))] for each in boundaries]
    return {
        "ballast_profile": 1, "model": model.text, "model_digest": f"{xxh3(model.text.encode()):016x}", **head,
        "split_backward": any(o.kind == "I" for operations in steps[0] for o in operations), "lean": False,
        "threads": ranks[0].threads, "order": _order(steps[kept]), "cores": cores, "steps": len(steps),
        "step": statistics.median(seconds), "makespan": statistics.median(makespans),
        "between": statistics.median(max(0.0, a - b) for a, b in zip(seconds, makespans)),
        "boundary": statistics.median(latencies), "handover": 0.0, "replay_makespan": makespans[kept],
        "replay_boundary": latencies[kept], "replay_handover": 0.0,
        "chunks": _chunks(ranks, model, layers, head["attention"] == "flash", input_share),
        "stages": [{"slot_bytes": max(rank.bytes.values()), "step_end": ends[kept][r],
                    "times": [operation.cost for operation in rank.steps[kept]]} for r, rank in enumerate(ranks)]}


def profile(schedule: Any, step: Callable[[], Any], *, file: str | os.PathLike[str] | None = None, layers: int,
            hidden: int, heads: int, seq: int, vocab: int, micro_batch: int, family: str = "gpt2",
            kv_heads: int | None = None, head_dim: int | None = None, ffn: int | None = None, tied: bool | None = None,
            stage_layers: Sequence[int] | None = None, attention: str = "flash", recompute: str = "none",
            dtype: str = "fp32", name: str | None = None, input_share: float | None = None,
            steps: int = 5) -> dict[str, Any]:
    """Times a pipeline, on every rank of it at once, for `ballastctl plan | simulate | estimate --profile`.

        bt.profile(schedule, lambda: train_step(schedule, batch), file="p.json",
                   layers=24, hidden=2048, heads=16, seq=2048, vocab=50304, micro_batch=2, dtype="bf16")

    Runs `step` once for the bytes of blocks and to warm up, and then `steps` times. Operations are timed where they
    compute: without waiting for messages, with the loss in the last stage's F; on a CPU with one thread in processor
    time, so that ranks may share cores.

    Args:
        schedule: of torch.distributed.pipelining, on all ranks of its group.
        step: one training step, as a rule with the optimizer's, which calls `schedule.step`.
        file: where rank 0 writes the profile; None: nowhere.
        layers, hidden, heads, seq, vocab, family, kv_heads, head_dim, ffn, tied: as in a job's `model`, with its
            defaults: `ffn` 4 hidden and `tied` True for gpt2; a llama has to give `ffn`.
        micro_batch: sequences of one.
        stage_layers: layers of each of PyTorch's stages along the model; None: as evenly as they can be shared.
        attention: what the modules do: "flash" or "naive".
        recompute: the same: "none", "attention" or "full".
        dtype: they compute in, "fp32" or "bf16".
        name: the schedule's in Ballast, for a replay; None: known of PyTorch's own and of orders from `schedule`.
        input_share: of I in backward passes that are not split; None: by FLOPs. Ballast sends a gradient as soon as I
            has ended, PyTorch when all of B has: 1.0 simulates PyTorch's own 1F1B (and no other).
        steps: that are timed.

    Returns:
        The profile, on every rank.

    Raises:
        ValueError: what does not fit together; a step without a backward pass.
        OSError: rank 0 cannot write the file.
    """
    words = {"family": (family, ("gpt2", "llama")), "attention": (attention, ("flash", "naive")),
             "recompute": (recompute, ("none", "attention", "full")), "dtype": (dtype, ("fp32", "bf16"))}
    for what, (given, known) in words.items():
        if given not in known:
            raise ValueError(f"{what}: {given!r} is none of {', '.join(known)}")
    if ffn is None and family == "llama":
        raise ValueError("ffn: a llama has no default")
    model = Model(family, layers, hidden, heads, kv_heads or heads, head_dim or hidden // heads, ffn or 4 * hidden,
                  vocab, seq, family == "gpt2" if tied is None else tied)
    recorder = _Recorder(schedule)
    first = recorder.stages[0]
    count = first.num_stages
    shared = [layers // count + (i < layers % count) for i in range(count)]
    shared = shared if stage_layers is None else list(stage_layers)
    if len(shared) != count or sum(shared) != layers or min(shared) < 1:
        raise ValueError(f"stage_layers: {shared} are not {layers} layers on {count} stages, one or more on each")
    if steps < 1:
        raise ValueError(f"steps: {steps} is less than 1")

    recorder.measure_bytes(step)
    barriers = []
    for _ in range(BARRIERS):
        dist.barrier(first.group)
        barriers.append(time.monotonic())
    timed = [recorder.time(step) for _ in range(steps)]
    mine = _Rank(_machine(), len(os.sched_getaffinity(0)), torch.get_num_threads(), barriers, recorder.bytes,
                 [seconds for seconds, _ in timed], [operations for _, operations in timed])
    ranks: list[Any] = [None] * first.group_size
    dist.all_gather_object(ranks, mine, group=first.group)
    if not all(any(o.kind in "BI" for o in operations) for rank in ranks for operations in rank.steps):
        raise ValueError("a step without a backward pass: nothing to profile")
    made = _document(ranks, model, shared, input_share, {
        "schedule": (name or getattr(schedule, "_ballast_schedule", None) or
                     _NAMES.get(type(schedule).__name__, type(schedule).__name__))[:31],
        "micro_batch": micro_batch, "attention": attention, "recompute": recompute, "dtype": dtype,
        "device": "cuda" if first.device.type == "cuda" else "host", "micro_batches": schedule._n_microbatches})
    if file is not None and first.group_rank == 0:
        part = f"{os.fspath(file)}.{os.getpid()}.part"
        Path(part).write_text(json.dumps(made, indent=1) + "\n")
        os.replace(part, file)
    return made
