# SPDX-License-Identifier: Apache-2.0
"""What autograd saves, kept or parked: the hooks behind `park`, `hooks` and `attach`."""

from __future__ import annotations

import atexit
import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .errors import BlockLost, StoreError
from .store import Chunk, Store

ENTRIES = 4096  # of a region without an end, before those of storages that are gone are forgotten
ALIGNMENT = 64  # bytes: of storages within a chunk, more than any dtype needs


memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
STRANGE = ("subclass", "layout")  # may have no storage


def _is_cast_of_leaf(tensor: torch.Tensor) -> bool:
    """Autocast's copy of a parameter, which autocast keeps anyway."""
    cast = tensor.grad_fn
    return (cast is not None and cast.name().startswith("ToCopyBackward") and bool(cast.next_functions)
            and getattr(cast.next_functions[0][0], "name", lambda: "")() == "torch::autograd::AccumulateGrad")


def why_not(tensor: torch.Tensor, min_bytes: int, whole: bool = True) -> str | None:
    """Why a saved tensor stays where it is; None: it may leave. `own` reasons are no activations at all.

    `whole`: its whole storage would leave with it.
    """
    owner = tensor if tensor._base is None else tensor._base
    if (owner.is_leaf and owner.requires_grad) or isinstance(owner, torch.nn.Parameter) or _is_cast_of_leaf(owner):
        return "own"
    if type(tensor) is not torch.Tensor:
        return "subclass"
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda") or tensor.is_conj() or \
            tensor.is_neg():
        return "layout"
    if getattr(tensor, "_TE_do_not_offload", False):
        return "marked"
    size = tensor.untyped_storage().nbytes() if whole else tensor.numel() * tensor.element_size()
    if size < min_bytes:
        return "small"
    if whole and not owner.requires_grad and size > 2 * tensor.numel() * tensor.element_size():
        return "part"  # of something larger that is not autograd's, as a slice of a data set
    return None


def span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements of a storage from the first to the last that such a tensor has."""
    return 0 if 0 in shape else 1 + sum((count - 1) * step for count, step in zip(shape, stride))


def span_bytes(tensor: torch.Tensor) -> int:
    return span(tensor.shape, tensor.stride()) * tensor.element_size()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its span, as uint8."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size(), (span_bytes(tensor),))


class Entry:
    """A storage that one region saw, or the tensor alone that was saved, and how many saved tensors are still made of it."""

    __slots__ = ("store", "storage", "size", "wanted", "chunk", "offset", "uses", "held")

    def __init__(self, store: Store, storage: torch.UntypedStorage | None, wanted: bool, size: int = 0) -> None:
        self.store, self.size = store, size  # bytes
        self.storage = None if storage is None else StorageWeakRef(storage)
        self.wanted = wanted  # it was fit to be parked
        self.chunk: Chunk | None = None  # None: it stayed
        self.offset = 0  # bytes, in the chunk
        self.uses = 0
        self.held = False  # counted among what this process holds

    def end_use(self, unread: bool) -> None:
        """Under the store's lock."""
        self.uses -= 1
        chunk = self.chunk
        if chunk is not None and unread:
            chunk.unread -= 1
        if self.uses > 0:
            return
        if self.held:
            self.store._hold(-self.size)
        if self.wanted:
            self.store._want(-self.size)
        if chunk is not None:
            chunk.alive -= 1
            if chunk.alive == 0 and chunk.sealed:
                self.store._discard(chunk)
            elif chunk.alive == 0:
                chunk.segments[0].used = 0  # it is filled from the start again


class Use:
    """What autograd gets in place of a tensor that it saves."""

    __slots__ = ("entry", "tensor", "version", "index", "dtype", "device", "shape", "stride", "start", "size", "read",
                 "region", "dropped")

    def __init__(self, region: Region, entry: Entry, tensor: torch.Tensor, index: int) -> None:
        self.region, self.index, self.read = region, index, False
        self.entry: Entry | None = entry  # None: ended
        self.version = tensor._version
        self.dropped = entry.store._dropped
        self.tensor: torch.Tensor | None = None
        if entry.chunk is None:
            self.tensor = tensor.detach()  # an output would keep its own node alive
        else:
            self.dtype, self.device, self.shape = tensor.dtype, tensor.device, tensor.shape
            self.stride = tensor.stride()
            self.start = tensor.storage_offset() * tensor.element_size() if region.dedupes else 0
            self.size = span_bytes(tensor) if region.dedupes else entry.size

    def tensor_of(self, data: torch.Tensor) -> torch.Tensor:
        """`data`, uint8, as what was saved."""
        tensor, at = torch.empty(0, dtype=self.dtype, device=data.device), data.storage_offset() // self.dtype.itemsize
        if self.size < span(self.shape, self.stride) * self.dtype.itemsize:  # it was gathered
            tensor.set_(data.untyped_storage(), at, self.shape)
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=data.device).copy_(tensor)
        return tensor.set_(data.untyped_storage(), at, self.shape, self.stride)

    def end(self) -> None:
        """Nobody asks for it any more. A second call does nothing."""
        # On any thread, at any time, also while the store's lock is held: it is told later.
        if self.entry is not None:
            self.dropped.append((self.entry, self.read))
            self.entry = self.tensor = None

    __del__ = end


def restored_state(tensors: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    """A context that puts the random number generators back to where they are now, for the time it lasts."""
    state = torch.get_rng_state()
    devices = sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})
    states = [torch.cuda.get_rng_state(device) for device in devices]
    autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in ("cpu", *(("cuda",) if devices else ()))]

    def run(function: Callable[[], Any]) -> None:
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(state)
            for device, saved in zip(devices, states):
                torch.cuda.set_rng_state(saved, device)
            for device, enabled, dtype in autocast:
                function = _under(torch.autocast(device, dtype=dtype, enabled=enabled), function)
            function()

    return run


def _under(context: Any, function: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with context:
            return function()
    return run


def tensors_of(*values: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in torch.utils._pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def leaves_of(outputs: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The parameters, and other leaves, whose gradients come from `outputs`, without those that `inputs` were made of."""
    seen = {tensor.grad_fn for tensor in inputs}
    nodes, leaves = [tensor.grad_fn for tensor in outputs], []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # AccumulateGrad
            leaves.append(node.variable)
        nodes.extend(before for before, _ in node.next_functions)
    return leaves


class Recompute:
    """A forward pass that can be run again: its inputs are kept, random numbers come from the same states."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._inputs = tensors_of(arguments, keywords)
        self._run, self._call = restored_state(self._inputs), functools.partial(function, *arguments, **keywords)
        self._versions = [("an input", tensor, tensor._version) for tensor in self._inputs]

    def made(self, outputs: Any) -> None:
        """What the forward pass returned: it shows the parameters that it read."""
        for leaf in leaves_of(tensors_of(outputs), self._inputs):
            self._versions.append(("a parameter", leaf, leaf._version))

    def changed(self) -> str | None:
        """What makes another result likely."""
        for what, tensor, version in self._versions:
            if tensor._version != version:
                return f"{what} of shape {list(tensor.shape)} was changed in place after the forward pass"
        return None

    def __call__(self) -> None:
        self._run(self._call)


@functools.cache
def empty_queue_at_exit() -> None:
    """An error out of a hook leaves nodes of the graph in autograd's queue, and PyTorch 2.15 crashes where they go after
    Python has ended. Another backward pass empties it."""
    atexit.register(lambda: (torch.ones((), requires_grad=True) * 1).backward())


class Region:
    """Saved tensors of one forward pass (of a micro-batch on a stage, or of all that a `with` holds).

    `parks`: False measures only. `forgets`: what was loaded is let go of when all of it was had once; False: when nobody can
    ask for it any more, or by forget(). `dedupes`: a storage moves whole, and once if it is saved several times; False: just
    what a tensor is made of. `ends`: finish() is called; False: the store begins anew whenever nothing is left of what was
    saved. `recompute`: makes everything that was saved here again, in the same order, by running the forward pass; None: a
    lost block is an error.
    """

    def __init__(self, store: Store, *, min_bytes: int, parks: bool = True, prefetch: int = 1, forgets: bool = True,
                 dedupes: bool = True, ends: bool = True, recompute: Recompute | None = None) -> None:
        self.store, self.min_bytes, self.parks, self.prefetch = store, min_bytes, parks, prefetch
        self.recompute, self.forgets, self.dedupes, self.ends = recompute, forgets, dedupes, ends
        self._entries: dict[tuple[int, int], Entry] = {}
        self._leave: dict[int, StorageWeakRef] = {}
        self._filling: Chunk | None = None
        self._chunks: list[weakref.ref[Chunk]] = []  # in the order of the forward pass
        self._live = 0  # of them when they were counted last
        self._count = 0
        self._again: list[torch.Tensor] | None = None

    # ---- forward

    def leave(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """These are kept by somebody else anyway."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._leave[storage._cdata] = StorageWeakRef(storage)

    def pack(self, tensor: torch.Tensor) -> Use:
        index, self._count = self._count, self._count + 1
        reason = why_not(tensor, self.min_bytes, self.dedupes)
        with self.store._locked():
            self.store._check()
            self.store._collect()
            if not self.ends and self.store._need == 0:  # nothing of a unit before is left
                self.store._begin_region(0 if self.dedupes else self.store._next_size(tensor.nbytes))
            return Use(self, self._entry(tensor, reason), tensor, index)

    def _entry(self, tensor: torch.Tensor, reason: str | None) -> Entry:
        if reason in STRANGE:
            entry = Entry(self.store, None, False)
            entry.uses = 1
            return entry
        # A storage has one number as long as somebody refers to it, weakly too; another version has other bytes.
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor._version
        entry = self._entries.get(key) if self.dedupes else None
        if len(self._entries) > ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if not entry.storage.expired()}
        if entry is None or entry.uses == 0 or entry.storage.expired() or not self._has_same_bytes(entry, storage):
            wanted = (self.parks and reason is None and key[0] not in self._leave
                      and not (self.dedupes and self.store._is_constant(tensor, storage)))
            gathered = min(tensor.numel() * tensor.element_size(), span_bytes(tensor))
            entry = self._entries[key] = Entry(self.store, storage, wanted, storage.nbytes() if self.dedupes else gathered)
            if wanted:
                self.store._want(entry.size)
                self._place(entry, self._data(tensor, storage))
            if entry.chunk is None and reason not in ("own", "part") and key[0] not in self._leave:
                entry.held = True
                self.store._hold(entry.size)
        entry.uses += 1
        if entry.chunk is not None:
            entry.chunk.alive += entry.uses == 1
            entry.chunk.unread += 1
        return entry

    def _has_same_bytes(self, entry: Entry, storage: torch.UntypedStorage) -> bool:
        """What was copied is what is there now: writes by numpy or through `.data` leave the version as it was."""
        if entry.chunk is None:
            return True
        if entry.size != storage.nbytes():
            return False  # resized, by resize_ of the storage
        if storage.device.type != "cpu":
            return True
        segments, at = entry.chunk.segments, entry.offset
        if any(segment.memory is None for segment in segments):
            return False  # on its way: it is copied again
        for segment in segments:
            size = min(entry.size, segment.used - at) if len(segments) == 1 else segment.used
            begin = storage.data_ptr() + segments.index(segment) * self.store.chunk_bytes
            if memcmp(segment.memory.data_ptr() + at, begin, size) != 0:
                return False
        return True

    def _data(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
        """What leaves with a tensor, as uint8: its storage, or the tensor alone, gathered if there are gaps in it."""
        if self.dedupes:
            return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        gaps = tensor.numel() * tensor.element_size() < span_bytes(tensor)
        return bytes_of(tensor.detach().contiguous() if gaps else tensor)

    def _place(self, entry: Entry, data: torch.Tensor) -> None:
        """Copies data into a chunk, if there is one to be had."""
        store = self.store
        if entry.size > store.chunk_bytes:
            entry.chunk = store._park_large(data)
            if entry.chunk is not None:
                self._follow(entry.chunk)
        else:
            at = -(-self._filling.segments[0].used // ALIGNMENT) * ALIGNMENT if self._filling is not None else 0
            if self._filling is None or self._filling.generation != store._client.generation or \
                    at + entry.size > store.chunk_bytes:
                self.seal()
                self._filling, at = store._begin_chunk(), 0
                if self._filling is not None:
                    self._follow(self._filling)
            if self._filling is not None:
                segment = self._filling.segments[0]
                segment.memory[at:at + entry.size].copy_(data)
                segment.used = at + entry.size
                entry.chunk, entry.offset = self._filling, at
        if entry.chunk is None:
            store._counts["kept"] += 1

    def _follow(self, chunk: Chunk) -> None:
        """The next one in the order of the forward pass."""
        if len(self._chunks) >= 2 * self._live + 64:  # a region without an end
            alive = [ref for ref in self._chunks if ref() is not None]
            for index, ref in enumerate(alive):
                ref().index = index
            self._chunks, self._live = alive, len(alive)
        chunk.index = len(self._chunks)
        self._chunks.append(weakref.ref(chunk))

    def seal(self) -> None:
        """What was saved until now leaves; more may come."""
        chunk, self._filling = self._filling, None
        if chunk is not None:
            with self.store._locked():
                if chunk.alive == 0:
                    self.store._discard(chunk)
                else:
                    self.store._seal(chunk)

    def finish(self) -> None:
        """Nothing more is saved here."""
        self.seal()
        self._entries.clear()
        self._leave.clear()

    # ---- backward

    def unpack(self, use: Use) -> torch.Tensor:
        store = self.store
        if use.tensor is not None:
            return self._kept(use)
        if self._again is not None:
            return use.tensor_of(bytes_of(self._again[use.index]).clone())
        with store._locked():
            store._check()
            if use.entry is None:
                raise StoreError(f"{store.address}: a tensor is asked for that was freed", status="NOT_FOUND",
                                 store=store.address)
            try:
                data, lost = store._read(use.entry.chunk), None
            except BlockLost as error:
                if self.recompute is None:
                    empty_queue_at_exit()
                    raise
                data, lost = None, error.with_traceback(None)
        if data is None:
            return self._recomputed(use, lost)
        with store._locked():
            chunk = use.entry.chunk
            self._prefetch_before(chunk)
            if not use.read:
                use.read = True
                chunk.unread -= 1
            over = chunk.unread == 0 and self.forgets
            tensor = self._tensor(use, data, alone=over and data is chunk.buffer and use.entry.size == chunk.used)
            if over:
                store._forget_buffer(chunk)
            store._collect()
            return tensor

    def _kept(self, use: Use) -> torch.Tensor:
        if use.tensor._version != use.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a saved "
                f"tensor of shape {list(use.tensor.shape)} is at version {use.tensor._version}; expected version "
                f"{use.version} instead")
        with self.store._locked():
            self.store._collect()
        return use.tensor

    @staticmethod
    def _tensor(use: Use, data: torch.Tensor, alone: bool) -> torch.Tensor:
        """In memory that nobody else reads or writes: autograd may make a gradient of it, and add to that in place.

        `alone`: `data` is used for nothing else.
        """
        at = use.entry.offset + use.start
        return use.tensor_of(data[at:at + use.size].to(use.device, copy=not alone))

    def _prefetch_before(self, chunk: Chunk) -> None:
        """Backward passes come from the end: what was parked before is needed next."""
        if self.prefetch == 0:
            return
        for ref in self._chunks[max(chunk.index - self.prefetch, 0):chunk.index]:
            other = ref()
            if other is not None and other.unread > 0:
                self.store._prefetch(other)

    def load(self) -> None:
        """Begins to load everything: its backward pass comes next."""
        with self.store._locked():
            for ref in self._chunks:
                chunk = ref()
                if chunk is not None:
                    self.store._prefetch(chunk)

    def forget(self) -> None:
        """Lets go of what was loaded. It can be loaded again."""
        with self.store._locked():
            for ref in self._chunks:
                chunk = ref()
                if chunk is not None:
                    self.store._forget_buffer(chunk)

    def _recomputed(self, use: Use, lost: BlockLost) -> torch.Tensor:
        changed = self.recompute.changed()
        if changed is not None:
            empty_queue_at_exit()
            raise BlockLost(store=lost.store, lease=lost.lease, status=lost.status,
                            cause=f"{lost.cause}; it cannot be made again: {changed}")
        made: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> None:
            made.append(tensor.detach())

        def unpack(_: None) -> torch.Tensor:
            raise RuntimeError("a backward pass inside of a recomputation")

        with torch.enable_grad(), saved_tensors_hooks(pack, unpack):
            self.recompute()
        again = made[use.index] if len(made) == self._count else None
        if again is None or again.shape != use.shape or again.dtype != use.dtype:
            what = f"{len(made)} tensors" if again is None else f"one of {list(again.shape)} {again.dtype}"
            raise RuntimeError(f"the forward pass saved {self._count} tensors at first, one of them of {list(use.shape)} "
                               f"{use.dtype}, and {what} when a lost block was made again; it must do the same each time "
                               "(docs/pytorch.md)")
        self._again = made
        self.store._counts["recomputed"] += 1
        return use.tensor_of(bytes_of(again).clone())

    def __del__(self) -> None:
        if self._filling is not None:  # never sealed
            self.store._dropped.append((self._filling, True))
