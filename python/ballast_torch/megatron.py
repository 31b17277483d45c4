# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's fine-grained activation offloading, to a store instead of pinned memory of the host."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from .backend import StorageBackend
from .store import Store

MODULE = "megatron.core.pipeline_parallel.fine_grained_activation_offload"
_MARK = "ballast"


def install(store: Store, *, handler: type | None = None, min_bytes: int | str = 1 << 20) -> Callable[[], None]:
    """`ChunkOffloadHandler.offload` and `.reload` go through `store`. What it does not take goes where it went before.

    Args:
        store: where to.
        handler: the class; None: Megatron-LM's own.
        min_bytes: smaller tensors are left to Megatron-LM.

    Returns:
        A function that puts both methods back.

    Raises:
        ImportError: no Megatron-LM with fine-grained activation offloading is installed.
        TypeError: the class has no `offload` and `reload`.
    """
    if handler is None:
        handler = importlib.import_module(MODULE).ChunkOffloadHandler
    before = {name: inspect.getattr_static(handler, name, None) for name in ("offload", "reload")}
    for name, method in before.items():
        if method is None:
            raise TypeError(f"{handler.__module__}.{handler.__qualname__} has no {name}(); versions of Megatron-LM that have "
                            "fine-grained activation offloading do")
    backend = StorageBackend(store, min_bytes=min_bytes)
    is_static = isinstance(before["offload"], staticmethod)

    def offload(*arguments: Any, **keywords: Any) -> Any:
        tensor = keywords.get("src_tensor", arguments[0 if is_static else 1] if len(arguments) > (not is_static) else None)
        if type(tensor) is torch.Tensor:
            payload = backend.put(tensor)
            if payload is not None:
                return _MARK, payload
        return before["offload"].__get__(None if is_static else arguments[0], handler)(
            *arguments[0 if is_static else 1:], **keywords)

    def reload(*arguments: Any, **keywords: Any) -> Any:
        state = keywords.get("state", arguments[0 if is_static else 1] if len(arguments) > (not is_static) else None)
        if isinstance(state, tuple) and len(state) == 2 and state[0] == _MARK:
            return backend.get(state[1])
        return before["reload"].__get__(None if is_static else arguments[0], handler)(
            *arguments[0 if is_static else 1:], **keywords)

    def uninstall() -> None:
        for name, method in before.items():
            setattr(handler, name, method)

    handler.offload = staticmethod(offload) if is_static else offload
    handler.reload = staticmethod(reload) if is_static else reload
    return uninstall
