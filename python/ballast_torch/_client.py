# SPDX-License-Identifier: Apache-2.0
"""A session at one store: memory that blocks leave from, and slots by size. Part of `Store`, under its lock."""

from __future__ import annotations

import collections
import ctypes
import os
import weakref
from ctypes import byref, c_char, c_uint64, c_void_p

import torch

from . import _native
from .errors import StoreError

GRANULE = 64 << 10  # of the store
REOPEN_MS = 1000


def slot_bytes(size: int) -> int:
    """The bytes of the slot for a block of `size` bytes: few different sizes, at most an eighth too large."""
    step = GRANULE if size <= 1 << 20 else 1 << (size.bit_length() - 4)
    return -(-size // step) * step


class Arena:
    """Memory of this process that stores may read (a sealed memfd), cut into pieces of any size.

    It lives as long as the store or a tensor in one of its pieces.
    """

    def __init__(self, size: int, store: str) -> None:
        self.region, self._heap, self._store, self._pid = _native.Region(), c_void_p(), store, os.getpid()
        self._freed: collections.deque[int] = collections.deque()  # by finalizers, on any thread, while anything runs
        _native.call(store, "bl_client_region_create", size, byref(self.region))
        _native.call(store, "bl_client_heap_create", byref(self.region), byref(self._heap))

    def acquire(self, size: int) -> torch.Tensor | None:
        """`size` bytes as a uint8 tensor; they are free again when its storage goes. None: not in one piece."""
        while self._freed:
            _native.call(self._store, "bl_client_heap_release", self._heap, self._freed.popleft())
        at = c_void_p()
        if _native.library().bl_client_heap_acquire(self._heap, size, byref(at), None) != 0:
            return None
        memory = (c_char * size).from_address(at.value)
        weakref.finalize(memory, self._free, at.value).atexit = False
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _free(self, at: int) -> None:
        self._freed.append(at)

    def __del__(self) -> None:
        if self._heap and os.getpid() == self._pid:
            _native.library().bl_client_heap_destroy(self._heap)
            _native.library().bl_client_region_destroy(byref(self.region))


class Client:
    """Not thread-safe. After a failure that ends the session `lost` says why, until reopen()."""

    def __init__(self, address: str, *, job: str, rank: int, size: int, arena: Arena, path: str, verify: bool,
                 tls: tuple[str, str, str] | None, plaintext: bool, deadline: float) -> None:
        self.address, self.generation = address, 0
        self.lost: StoreError | None = None
        self._arena = arena
        ca, certificate, key = (os.fsencode(path) for path in tls) if tls else (None, None, None)
        self._options = _native.Options(
            size=ctypes.sizeof(_native.Options), store=address.encode(), job=job.encode(), plan=rank + 1, stage=rank,
            regions=ctypes.pointer(arena.region), region_count=1, deadline_ms=round(deadline * 1000),
            path=_native.PATHS[path], unverified=not verify, tls_ca=ca, tls_certificate=certificate, tls_key=key,
            plaintext=plaintext)
        self._client: c_void_p | None = None
        self._forget_slots()
        self.open(size)

    def _forget_slots(self) -> None:
        self._slots: dict[int, int] = {}  # lease: bytes
        self._free: dict[int, list[int]] = {}  # bytes: leases
        self._demands: dict[int, int] = {}  # bytes: slots reserved
        self._plan = 0

    def call(self, name: str, *arguments: object) -> None:
        _native.call(self.address, name, *arguments)

    @property
    def size(self) -> int:
        return self._options.arena_bytes

    def open(self, size: int) -> None:
        """Closes what is open, and borrows `size` bytes."""
        self.close()
        self.generation += 1
        self._options.arena_bytes = size
        opened = c_void_p()
        try:
            self.call("bl_client_open", byref(self._options), byref(opened))
        except StoreError as error:
            self.lost = error.kept()
            raise
        self._client, self.lost = opened, None

    def close(self) -> None:
        if self._client is not None:
            _native.library().bl_client_close(self._client)
            self._client = None
        self._forget_slots()

    def reopen(self) -> None:
        """A new session after one that was lost, with as many slots as there is memory for. Takes a second at most."""
        demands = self._demands
        self._options.open_ms = REOPEN_MS
        self.open(self.size)
        for size, count in demands.items():
            self.reserve(size, count)

    def path(self) -> str:
        """As `shm: same machine`."""
        if self._client is None:
            return ""
        text = ctypes.create_string_buffer(192)
        _native.library().bl_client_path(self._client, text)
        return text.value.decode()

    def alive(self) -> bool:
        if self.lost is not None or self._client is None:
            return False
        error = _native.Error()
        status = _native.library().bl_client_state(self._client, byref(error))
        if status != 0:
            self.lost = StoreError(error.text.decode(errors="replace"), status=_native.status_name(status),
                                   store=self.address)
        return self.lost is None

    def is_draining(self) -> bool:
        return self._client is not None and _native.library().bl_client_is_draining(self._client)

    def reserve(self, size: int, count: int) -> bool:
        """`count` more slots of `size` bytes. False: the store has no memory, or the quota is used up."""
        wanted = {**self._demands, size: self._demands.get(size, 0) + count}
        demands = (_native.Demand * len(wanted))(*wanted.items())
        try:
            self.call("bl_client_reserve", self._client, self._plan + 1, demands, len(wanted))
        except StoreError as error:
            if error.status != "EXHAUSTED":
                self.alive()
            return False
        if self._plan > 0:
            self.call("bl_client_unreserve", self._client, self._plan)
        self._plan, self._demands = self._plan + 1, wanted
        slots = (c_uint64 * sum(wanted.values()))()
        found = _native.library().bl_client_slots(self._client, slots, len(slots))
        fresh = [slot for slot in slots[:min(found, len(slots))] if slot not in self._slots]
        self._slots.update(dict.fromkeys(fresh, size))
        self._free.setdefault(size, []).extend(fresh)
        return True

    def take_slot(self, size: int) -> int | None:
        """An empty slot of just `size` bytes. None: there is none."""
        free = self._free.get(size)
        return free.pop() if free else None

    def free_slot(self, slot: int) -> None:
        """A slot that is empty, or is being emptied: what comes later waits for that."""
        self._free[self._slots[slot]].append(slot)

    def start(self, verb: str, slot: int, *arguments: object) -> _native.Ticket:
        ticket = _native.Ticket()
        self._must_be_open()
        self.call(f"bl_client_{verb}", self._client, slot, *arguments, byref(ticket))
        return ticket

    def ended(self, ticket: _native.Ticket) -> bool:
        return self._client is None or _native.library().bl_client_poll(self._client, ticket)

    def wait(self, ticket: _native.Ticket) -> None:
        """Raises what became of it. Ends within the client's deadline."""
        self._must_be_open()
        self.call("bl_client_wait", self._client, ticket, _native.FOREVER)

    def abandon(self, ticket: _native.Ticket) -> None:
        """What it moved is this process's again."""
        if self._client is not None:
            _native.library().bl_client_abandon(self._client, ticket)

    def _must_be_open(self) -> None:
        if self._client is None:
            raise self.lost.kept() if self.lost is not None else StoreError(f"{self.address}: the store is closed", status="PRECONDITION", store=self.address)
