# SPDX-License-Identifier: Apache-2.0
"""Single tensors at a store: the protocol of pluggable activation storage (torchtitan), and Megatron-LM's handlers."""

from __future__ import annotations

from typing import Any

import torch

from .saved import Region, Use
from .store import Store, parse_bytes


class StorageBackend:
    """Tensors by hand: `put` gives a payload, `get` the tensor again, `free` ends it.

    Tensors that are put one after the other share slots; a slot leaves when it is full, or at `flush`, which belongs at
    the end of a unit (a layer of a stage and micro-batch).

    Args:
        store: where to. If it was opened without `size`, it borrows for some tensors at first, and twice as much when some
            stayed and all the others have been freed.
        min_bytes: smaller tensors are not taken.
        prefetch: chunks that a `get` loads ahead, against the order of puts.
    """

    def __init__(self, store: Store, *, min_bytes: int | str = 1 << 20, prefetch: int = 1) -> None:
        self._region = Region(store, min_bytes=parse_bytes(min_bytes), prefetch=prefetch, dedupes=False, ends=False)

    def put(self, tensor: torch.Tensor, stream: Any = None) -> Use | None:
        """Copies a tensor on its way to the store. None: it stays where it is (small, a parameter, no slot).

        The copy has been made when this returns, in the order of `stream` (a CUDA stream; None: the current one).
        """
        with _on(stream):
            use = self._region.pack(tensor)
        return None if use.tensor is not None else use

    def get(self, payload: Use, out: torch.Tensor | None = None, stream: Any = None) -> torch.Tensor:
        """The tensor, with its shape, strides and bits; into `out` (of the same shape and dtype) where one is given.

        Raises:
            BlockLost: the store died or lost it.
        """
        with _on(stream):
            tensor = self._region.unpack(payload)
            return tensor if out is None else out.copy_(tensor)

    def free(self, payload: Use) -> None:
        """Its part of a slot is not needed any more."""
        payload.end()

    def flush(self) -> None:
        """What was put leaves, though its slot is not full."""
        self._region.seal()


def _on(stream: Any) -> Any:
    return torch.cuda.stream(stream) if isinstance(stream, torch.cuda.Stream) else torch.no_grad()
