# SPDX-License-Identifier: Apache-2.0
"""A store that lends memory to this process, and the blocks that are parked there."""

from __future__ import annotations

import collections
import logging
import os
import secrets
import threading
import time
import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import _native
from ._client import GRANULE, Arena, Client, slot_bytes
from .errors import BlockLost, StoreError

log = logging.getLogger("ballast_torch")

AHEAD = 32  # loads of a chunk under way while one of them is waited for
TICKETS = 160  # operations under way at a time; the library takes 256
FIRST_TENSORS = 32  # that a session has memory for at first, if they are put one by one
SLOTS_AT_ONCE = 4  # reserved with one call, where there is memory
REOPEN_SECONDS = 2.0  # at first, between attempts to find a store that was lost; doubled up to a minute
DEADLINE_SECONDS_MAX = 1e6
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 10**3, "MB": 10**6,
         "GB": 10**9, "TB": 10**12}


def parse_bytes(value: int | str) -> int:
    """`4 << 20`, `"4 MiB"`, `"1.5 GiB"`. ValueError: anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    text = str(value).strip()
    digits = text.rstrip("".join(set("".join(UNITS)))).strip()
    unit = text[len(digits):].strip() if text.startswith(digits) else None
    try:
        size = round(float(digits) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size <= 0:
        raise ValueError(f"{value!r} is not a number of bytes: 4194304, '4 MiB', '1.5 GiB'")
    return size


class Segment:
    """A part of a chunk that has a slot of its own."""

    __slots__ = ("slot", "used", "memory", "ticket", "lost")

    def __init__(self, slot: int, memory: torch.Tensor) -> None:
        self.slot: int | None = slot  # None: given back
        self.used = 0  # bytes of the block
        self.memory: torch.Tensor | None = memory  # while the block is here
        self.ticket: _native.Ticket | None = None  # of the evict
        self.lost: StoreError | None = None


class Load:
    """Of a segment into the buffer of its chunk."""

    __slots__ = ("segment", "at", "ticket", "over")

    def __init__(self, segment: Segment, at: int) -> None:
        self.segment, self.at = segment, at  # a byte of the buffer
        self.ticket: _native.Ticket | None = None  # None: not begun, or over
        self.over = False


class Chunk:
    """Saved bytes that leave and come back together."""

    __slots__ = ("segments", "generation", "index", "sealed", "gone", "told_lost", "buffer", "loads", "alive", "unread",
                 "__weakref__")

    def __init__(self, segments: list[Segment], generation: int) -> None:
        self.segments, self.generation = segments, generation
        self.index = 0  # among the chunks of its region
        self.sealed = self.gone = self.told_lost = False
        self.buffer: torch.Tensor | None = None  # uint8, of all of it, when loaded or being loaded
        self.loads: list[Load] | None = None  # None: not begun
        self.alive = 0  # entries that somebody may ask for
        self.unread = 0  # uses that have not come yet

    @property
    def used(self) -> int:
        return sum(segment.used for segment in self.segments)


def _end(pid: int, lock: threading.RLock, client: Client, loading: object) -> None:
    """Of a store that nobody closed, with its last reference or the process. Until then `loading` is written to."""
    if os.getpid() == pid:
        with lock:
            client.close()


class Store:
    """Memory at an activation-store, for what autograd saves.

    Args:
        address: where the store listens for control: `"unix:/run/store"` or `"host:port"`.
        job: names this run at the store (`ballastctl leases list --job NAME`). Stores that are open at a time, of one
            job or several, need different pairs of (job, rank): one that is opened ends an older one of the same pair. Each
            pair has an arena of its own. None: a name that nobody else has.
        rank: this process among those of the job.
        device: `"cpu"`. Tensors of GPUs pass through memory of the host.
        size: bytes to borrow, as a number or `"4 GiB"`. None: the first region (a `with park(...)`, a step of an attached
            schedule) keeps everything and is measured, then just what it takes is borrowed; more when more is needed.
        staging: bytes of this process through which blocks leave, taken at once: four chunks at least.
        chunk: bytes of the largest slot. Tensors share slots, or take several.
        path: `"auto"`, `"shm"` (same machine) or `"tcp"`.
        verify: a checksum of every block, computed here and at the store.
        tls: files (ca, certificate, key); the certificate's role is `stage`. None: plaintext.
        plaintext: allow that off the loopback interface.
        deadline: seconds after which a call gives up.

    Raises:
        StoreError: nobody listens at `address`, versions differ, there is no slot for `size`, ...
        ValueError: an argument; the text names it.

    Thread: any. A process that was forked from the one that opened a store can neither use nor close it (StoreError);
    what it does leaves the parent's store alone.
    """

    def __init__(self, address: str, *, job: str | None = None, rank: int = 0, device: str = "cpu",
                 size: int | str | None = None, staging: int | str = 32 << 20, chunk: int | str = 4 << 20,
                 path: str = "auto", verify: bool = True, tls: tuple[str, str, str] | None = None,
                 plaintext: bool = False, deadline: float = 10.0) -> None:
        if device != "cpu":
            raise ValueError(f"device: {device!r} is not there; blocks leave from memory of the host: 'cpu'")
        if path not in _native.PATHS:
            raise ValueError(f"path: {path!r} is none of {', '.join(_native.PATHS)}")
        if tls is not None and (isinstance(tls, (str, bytes)) or len(tls) != 3):
            raise ValueError("tls: three files are needed: (ca, certificate, key)")
        if not isinstance(address, str) or not address:
            raise ValueError(f"address: {address!r} is none, such as 'unix:/run/store' or 'host:7800'")
        if job is not None and (not isinstance(job, str) or not job.isprintable()):
            raise ValueError(f"job: {job!r} is no name")
        if not isinstance(rank, int) or not 0 <= rank < 2**32 - 1:
            raise ValueError(f"rank: {rank!r} is no number of a process, from 0 on")
        if not 0 < deadline <= DEADLINE_SECONDS_MAX:
            raise ValueError(f"deadline: {deadline!r} is no number of seconds from above 0 to {DEADLINE_SECONDS_MAX}")
        self.address, self.device = address, device
        self.chunk_bytes = slot_bytes(parse_bytes(chunk))
        self._staging_bytes = max(parse_bytes(staging), 4 * self.chunk_bytes)
        self._given = None if size is None else parse_bytes(size)
        self._borrowed = self._given or 0
        self._pid, self._lock, self._closed = os.getpid(), threading.RLock(), False
        self._arena = Arena(self._staging_bytes, address)
        self._options: dict[str, Any] = {
            "job": job or f"torch-{os.getpid()}-{secrets.token_hex(4)}", "rank": rank, "arena": self._arena, "path": path, "verify": verify,
            "tls": tls, "plaintext": plaintext, "deadline": deadline}
        self._client = Client(address, size=self._given or GRANULE, **self._options)
        self._full = self._given is None  # no more slots are asked for until the next region
        self._draining = False  # the store wants its memory back: nothing more leaves
        self._need = self._need_peak = 0  # bytes that were fit to be parked: now, and most
        self._alive = 0  # chunks with slots
        self._evicting: collections.deque[Segment] = collections.deque()
        self._loading: collections.deque[tuple[Chunk, Load]] = collections.deque()
        self._releasing: collections.deque[tuple[_native.Ticket, int, int]] = collections.deque()  # slot, generation
        self._under_way = 0  # tickets
        self._dropped: collections.deque[Any] = collections.deque()  # uses that ended: by finalizers, on any thread
        self._reopen_at, self._reopen_wait = 0.0, REOPEN_SECONDS
        self._held = self._held_peak = 0
        self._missed = 0  # tensors that stayed, when it was last asked for more
        self._constants: dict[int, StorageWeakRef] = {}
        self._said: set[str] = set()
        self._counts = dict.fromkeys(("parked", "loaded", "late", "kept", "lost", "recomputed", "bytes"), 0)
        self._waited = 0.0
        weakref.finalize(self, _end, self._pid, self._lock, self._client, self._loading)

    # ---- for everybody

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ballast_torch.Store {self.address} job={self._options['job']!r} size={self.size}>"

    @property
    def size(self) -> int:
        """Bytes borrowed."""
        return self._borrowed

    def stats(self) -> dict[str, Any]:
        """What happened since the store was opened.

        Returns:
            `parked`, `loaded`, `late` (their load had not ended when they were needed), `lost` and `recomputed` in blocks
            (slots' worth of tensors that move together); `kept`: tensors that stayed because the store had no slot or was
            gone; `bytes`: parked, in all; `waited_seconds`: of this process, for staging or loads; `held` and
            `held_peak`: bytes of saved tensors in this process now and at most, without parameters and without `staging`;
            `size`: bytes borrowed; `path`: how blocks travel.
        """
        with self._locked():
            self._collect()
            return {**self._counts, "waited_seconds": self._waited, "held": self._held, "held_peak": self._held_peak,
                    "staging": self._staging_bytes, "size": self.size, "path": self._client.path()}

    def reset_peak(self) -> None:
        """`held_peak` begins again at `held`."""
        with self._locked():
            self._collect()
            self._held_peak = self._held

    def close(self) -> None:
        """Gives everything back, as the last reference to the store does, and the end of the process. Blocks that are still
        parked are lost; a second call does nothing."""
        with self._locked():
            if not self._closed:
                self._collect()
                self._client.close()
                self._closed = True

    # ---- regions, under way

    def _usable(self) -> bool:
        return not self._closed and os.getpid() == self._pid

    def _locked(self) -> threading.RLock:
        """The lock, for a `with`. Not in a forked child, where another thread's copy of it may be locked for ever."""
        if os.getpid() != self._pid:
            raise StoreError(f"{self.address}: the store belongs to process {self._pid}, which opened it; this one was "
                             "forked from it and can use stores of its own only (start it with 'spawn')",
                             status="PRECONDITION", store=self.address)
        return self._lock

    def _check(self) -> None:
        if self._closed:
            raise StoreError(f"{self.address}: the store is closed", status="PRECONDITION", store=self.address)

    def _say(self, what: str) -> None:
        """Once for each."""
        if what not in self._said:
            self._said.add(what)
            log.warning("%s: %s", self.address, what)

    def _next_size(self, size: int) -> int:
        """Bytes to borrow for tensors that are put one by one, the next one of `size`: it is not known how many follow.
        0: what there is."""
        missed, self._missed = self._counts["kept"] > self._missed, self._counts["kept"]
        if self.size == 0:
            return FIRST_TENSORS * size
        return 2 * self.size if missed else 0

    def _begin_region(self, least: int = 0) -> None:
        """Between steps: what is asked for may be there now, and an arena may grow, to `least` or what was needed, while
        nothing is parked."""
        self._check()
        self._collect()
        if not self._client.alive():
            self._reopen()
            return
        self._draining = self._client.is_draining()
        if self._draining:
            self._say("the store is about to end; nothing more is parked there")
            return
        peak = max(self._need_peak, least)
        need = slot_bytes(peak + peak // 8 + 4 * self.chunk_bytes)
        if self._given is None and peak and need > self.size and self._alive == 0:
            self._resize(need)
        self._full = self.size == 0

    def _resize(self, size: int) -> None:
        while self._evicting or self._releasing:
            self._reap(wait=True)
        if self._under_way:
            return
        while size > 2 * self.chunk_bytes and size > self.size:
            try:
                self._client.open(size)
                self._borrowed = size
                return
            except StoreError as error:
                self._borrowed = 0
                if error.status != "EXHAUSTED":
                    break
                self._say(f"not all that is needed is there to borrow: {error}")
                size = slot_bytes(size * 3 // 4)
        self._reopen()

    def _reopen(self) -> None:
        if time.monotonic() < self._reopen_at or self._under_way:
            return
        try:
            self._client.reopen()
            self._reopen_wait, self._full = REOPEN_SECONDS, self.size == 0
            self._draining = False
            log.warning("%s: the store is back", self.address)
        except StoreError as error:
            what = "is gone" if error.status in ("UNAVAILABLE", "DEADLINE") else "lends nothing"
            self._say(f"the store {what}, everything stays here until it does again: {error}")
            self._reopen_at = time.monotonic() + self._reopen_wait
            self._reopen_wait = min(2 * self._reopen_wait, 60.0)

    # ---- chunks. All under the lock.

    def _hold(self, size: int) -> None:
        self._held += size
        self._held_peak = max(self._held_peak, self._held)

    def _want(self, size: int) -> None:
        self._need += size
        self._need_peak = max(self._need_peak, self._need)

    def _is_constant(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Something without a gradient that an earlier region saved, too, and that still lives: a buffer, a mask."""
        if tensor.requires_grad:
            return False
        seen = self._constants.get(storage._cdata)
        if seen is not None and not seen.expired():
            return True
        if len(self._constants) > 4096:
            self._constants = {key: ref for key, ref in self._constants.items() if not ref.expired()}
        self._constants[storage._cdata] = StorageWeakRef(storage)
        return False

    def _slot(self, size: int) -> int | None:
        """A slot of at least `size` bytes: one that is free, a new one, or one that is free soon."""
        client = self._client
        while client.lost is None:
            for fits in range(size, self.chunk_bytes + 1, self.chunk_bytes // 8):
                slot = client.take_slot(fits)
                if slot is not None:
                    return slot
            if not self._full:
                self._full = not (client.reserve(size, SLOTS_AT_ONCE) or client.reserve(size, 1))
            elif self._releasing:
                self._end_release()
            else:
                if self.size:
                    self._say("no more slot at the store; what does not fit stays here")
                return None
        return None

    def _staging(self, size: int) -> torch.Tensor | None:
        """Memory to leave from, once earlier blocks have left theirs."""
        while (memory := self._arena.acquire(size)) is None and self._evicting:
            begin = time.monotonic()
            self._reap(wait=True)
            self._waited += time.monotonic() - begin
        return memory

    def _begin_segment(self, size: int) -> Segment | None:
        if self._client.lost is not None or self._draining:
            return None
        slot = self._slot(size)
        if slot is None:
            return None
        memory = self._staging(size)
        if memory is None or self._client.lost is not None:
            self._client.free_slot(slot)
            return None
        return Segment(slot, memory)

    def _begin_chunk(self) -> Chunk | None:
        """For small tensors, to be filled and sealed. None: they stay."""
        segment = self._begin_segment(self.chunk_bytes)
        if segment is None:
            return None
        self._alive += 1
        return Chunk([segment], self._client.generation)

    def _park_large(self, data: torch.Tensor) -> Chunk | None:
        """A chunk of `data` (uint8, any device) alone. It leaves piece by piece."""
        chunk = Chunk([], self._client.generation)
        self._alive += 1
        unit = self.chunk_bytes // 8
        for at in range(0, data.numel(), self.chunk_bytes):
            part = data[at:at + self.chunk_bytes]
            segment = self._begin_segment(-(-part.numel() // unit) * unit)
            if segment is None or chunk.generation != self._client.generation:
                self._discard(chunk)
                return None
            segment.memory[:part.numel()].copy_(part)
            segment.used = part.numel()
            chunk.segments.append(segment)
            self._evict(chunk, segment)
        self._seal(chunk)
        return chunk

    def _evict(self, chunk: Chunk, segment: Segment) -> None:
        self._bound()
        if chunk.generation != self._client.generation:
            self._evict_failed(segment, StoreError(f"{self.address}: its slot was of a session that is over", status="FENCED",
                                                   store=self.address))
            return
        try:
            segment.ticket = self._client.start("evict_start", segment.slot, segment.memory.data_ptr(), segment.used, None)
        except StoreError as error:
            self._evict_failed(segment, error)
            return
        self._under_way += 1
        self._evicting.append(segment)

    def _seal(self, chunk: Chunk) -> None:
        """Nothing more comes: the chunk leaves."""
        chunk.sealed = True
        for segment in chunk.segments:
            if segment.ticket is None and segment.memory is not None and segment.slot is not None:
                self._evict(chunk, segment)
        self._counts["parked"] += 1
        self._counts["bytes"] += chunk.used

    def _evict_failed(self, segment: Segment, error: StoreError) -> None:
        """The block is still in its staging memory: it moves to memory that may be kept for long."""
        segment.memory = segment.memory[:segment.used].clone()
        segment.slot = None  # not used again: it may not be empty
        self._client.alive()
        if not self._closed:
            self._say(f"a block could not be parked and stays here: {error}")

    def _reap(self, wait: bool = False) -> None:
        """Ends operations that are over, and with `wait` the oldest."""
        while self._evicting:
            segment = self._evicting[0]
            if segment.ticket is not None:
                if not wait and not self._client.ended(segment.ticket):
                    break
                self._end_evict(segment)
                wait = False
            self._evicting.popleft()
        while self._releasing and (wait or self._client.ended(self._releasing[0][0])):
            self._end_release()
            wait = False
        while self._loading and self._loading[0][1].ticket is None:
            self._loading.popleft()

    def _end_release(self) -> None:
        self._under_way -= 1
        ticket, slot, generation = self._releasing.popleft()
        try:
            self._client.wait(ticket)
            if generation == self._client.generation:
                self._client.free_slot(slot)
        except StoreError:
            self._client.alive()

    def _end_evict(self, segment: Segment) -> None:
        ticket, segment.ticket = segment.ticket, None
        self._under_way -= 1
        try:
            self._client.wait(ticket)
            segment.memory = None
        except StoreError as error:
            self._evict_failed(segment, error)

    def _bound(self) -> None:
        """Room for another ticket."""
        while self._under_way >= TICKETS:
            if self._evicting or self._releasing:
                self._reap(wait=True)
            elif self._loading:
                self._end_load(*self._loading.popleft())
            else:
                return

    def _prefetch(self, chunk: Chunk) -> None:
        """Begins to load what is needed soon."""
        if chunk.loads is not None or chunk.alive == 0:
            return
        if len(chunk.segments) > 1 or chunk.segments[0].memory is None:  # else it is here still
            self._load(chunk)

    def _load(self, chunk: Chunk) -> None:
        """Begins as many loads as there are tickets for; the others begin when the chunk is read."""
        chunk.buffer = torch.empty(chunk.used, dtype=torch.uint8)
        chunk.loads = []
        self._hold(chunk.buffer.numel())
        at = 0
        for segment in chunk.segments:
            if segment.memory is not None:
                chunk.buffer[at:at + segment.used].copy_(segment.memory[:segment.used])
            else:
                load = Load(segment, at)
                chunk.loads.append(load)
                if self._under_way < TICKETS:
                    self._start_load(chunk, load)
            at += segment.used

    def _start_load(self, chunk: Chunk, load: Load) -> None:
        segment = load.segment
        if segment.lost is None and chunk.generation != self._client.generation:
            segment.lost = self._client.lost or StoreError(f"{self.address}: the store ended the session that it was "
                                                           "parked in", status="FENCED", store=self.address)
        if segment.lost is None:
            self._bound()
            try:
                load.ticket = self._client.start("load_start_kept", segment.slot, chunk.buffer.data_ptr() + load.at,
                                                 segment.used)
                self._under_way += 1
                self._loading.append((chunk, load))
                return
            except StoreError as error:
                segment.lost = error.kept()
        load.over = True

    def _end_load(self, chunk: Chunk, load: Load) -> None:
        """Asks once more where the store lives and did not answer in time."""
        for attempt in range(2):
            if load.ticket is None:
                return
            ticket, load.ticket = load.ticket, None
            self._under_way -= 1
            try:
                self._client.wait(ticket)
                load.over = True
            except StoreError as error:
                if attempt or error.status == "DATA_LOSS" or not self._client.alive():
                    load.segment.lost, load.over = error.kept(), True
                else:
                    self._start_load(chunk, load)

    def _read(self, chunk: Chunk) -> torch.Tensor:
        """All bytes of a chunk. BlockLost."""
        if chunk.loads is None and len(chunk.segments) == 1 and chunk.segments[0].memory is not None:
            return chunk.segments[0].memory
        fresh = chunk.loads is None or any(not load.over for load in chunk.loads)
        late = chunk.loads is None or not all(load.over or (load.ticket and self._client.ended(load.ticket))
                                              for load in chunk.loads)
        begin = time.monotonic()
        if chunk.loads is None:
            self._load(chunk)
        for at, load in enumerate(chunk.loads):
            for ahead in chunk.loads[at:at + AHEAD]:
                if not ahead.over and ahead.ticket is None:
                    self._start_load(chunk, ahead)
            self._end_load(chunk, load)
        if fresh and chunk.loads:
            self._counts["loaded"] += 1
            self._counts["late"] += late
            self._waited += time.monotonic() - begin
        lost = next((segment for segment in chunk.segments if segment.lost is not None), None)
        if lost is not None:
            cause = lost.lost
            self._counts["lost"] += not chunk.told_lost
            chunk.told_lost = True
            self._forget_buffer(chunk)
            if cause.status != "DATA_LOSS" and chunk.generation == self._client.generation and self._client.alive():
                lost.lost = None  # it may be there when it is asked for again
            raise BlockLost(store=self.address, lease=lost.slot or 0, cause=str(cause), status=cause.status)
        return chunk.buffer

    def _forget_buffer(self, chunk: Chunk) -> None:
        """Everything in it was had; who asks again loads it again."""
        if chunk.buffer is not None:
            for load in chunk.loads:
                if load.ticket is not None:
                    self._under_way -= 1
                    self._client.abandon(load.ticket)
                    load.ticket, load.over = None, True
            self._held -= chunk.buffer.numel()
            chunk.buffer = chunk.loads = None

    def _discard(self, chunk: Chunk) -> None:
        """Nobody can ask for it any more: its slots are free again."""
        if chunk.gone:
            return
        chunk.gone = True
        self._alive -= 1
        self._forget_buffer(chunk)
        for segment in chunk.segments:
            if segment.ticket is not None:
                self._end_evict(segment)
            slot, segment.slot, here = segment.slot, None, segment.memory is not None
            segment.memory = None
            if slot is None or chunk.generation != self._client.generation or not self._client.alive():
                continue
            if here:  # never left
                self._client.free_slot(slot)
                continue
            self._bound()
            try:
                self._releasing.append((self._client.start("release_start", slot), slot, self._client.generation))
                self._under_way += 1
            except StoreError:
                self._client.alive()

    def _collect(self) -> None:
        """Takes note of what has ended."""
        while self._dropped:
            ended, read = self._dropped.popleft()
            if isinstance(ended, Chunk):  # its region ended without a word
                ended.sealed = True
                if ended.alive == 0:
                    self._discard(ended)
            else:
                ended.end_use(not read)
        self._reap()
