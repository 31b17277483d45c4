# SPDX-License-Identifier: Apache-2.0
"""Plain autograd: what a region of a forward pass saves is parked."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.autograd.graph import saved_tensors_hooks

from .saved import Recompute, Region
from .store import Store, parse_bytes

Function = TypeVar("Function", bound=Callable[..., Any])


def refuse_compile() -> None:
    """Within what torch.compile runs, whether it traces this or has given up doing so. A compiled module inside of a region
    is fine."""
    if torch.compiler.is_compiling() or get_eval_frame_callback() not in (None, False):
        raise RuntimeError("ballast_torch cannot park what a function under torch.compile saves: begin the region outside of "
                           "it, and compile the modules inside")


class park:  # noqa: N801, a verb as it is used
    """Parks what autograd saves.

        with bt.park(store):
            loss = model(x)             # saved tensors of min_bytes and more leave as the forward pass goes on
        loss.backward()                 # and come back, the next chunk ahead of its use

        model.block = bt.park(store, on_loss="recompute")(model.block)

    As a wrapper of a function or module, a block that is lost can be made again by running the function once more: its
    inputs are kept for that, random numbers come from the same states, and it must do the same each time, as for
    `torch.utils.checkpoint` without reentrance. A copy of a wrapped module parks, too; `del module.forward` ends it.

    Args:
        store: where to.
        min_bytes: smaller storages stay.
        prefetch: chunks that are loaded ahead, against the order in which they left.
        on_loss: `"raise"` (BlockLost) or `"recompute"`, for wrappers.
        recompute: a function without arguments that runs the same forward pass again, for a `with`.

    Left alone, where they are: parameters and views of them, buffers (from the second time on), small tensors, subclasses of
    torch.Tensor, nested and sparse tensors, and what has the attribute `_TE_do_not_offload`. Gradients have the same bits as without.
    """

    def __init__(self, store: Store, *, min_bytes: int | str = 1 << 20, prefetch: int = 1, on_loss: str = "raise",
                 recompute: Callable[[], Any] | None = None) -> None:
        if on_loss not in ("raise", "recompute"):
            raise ValueError(f"on_loss: {on_loss!r} is neither 'raise' nor 'recompute'")
        if not isinstance(prefetch, int) or prefetch < 0:
            raise ValueError(f"prefetch: {prefetch!r} is no number of chunks, from 0 on")
        self._store, self._min_bytes, self._prefetch = store, parse_bytes(min_bytes), prefetch
        self._on_loss, self._recompute = on_loss, recompute
        self._open = threading.local()  # hooks are a thread's, too

    def _begin(self, recompute: Recompute | None) -> Region:
        refuse_compile()
        with self._store._locked():
            self._store._begin_region()
        return Region(self._store, min_bytes=self._min_bytes, prefetch=self._prefetch, recompute=recompute)

    def __enter__(self) -> park:
        if self._on_loss == "recompute" and self._recompute is None:
            raise ValueError("on_loss='recompute': a `with` cannot be run again; wrap a function, park(store, "
                             "on_loss='recompute')(f), or give recompute=")
        region = self._begin(None if self._recompute is None else Recompute(self._recompute, (), {}))
        hooks = saved_tensors_hooks(region.pack, region.unpack)
        hooks.__enter__()
        if not hasattr(self._open, "regions"):
            self._open.regions = []
        self._open.regions.append((region, hooks))
        return self

    def __exit__(self, *exception: Any) -> None:
        region, hooks = self._open.regions.pop()
        hooks.__exit__(*exception)
        region.finish()

    def __call__(self, function: Function) -> Function:
        """Wraps a function; a module is given a forward pass that parks, and is returned."""
        if isinstance(function, torch.nn.Module):
            function.forward = ParkedForward(self, function, vars(function).get("forward"))
            return function
        for lazy in inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction:
            if lazy(function):
                raise TypeError(f"{function!r} saves nothing before its result is asked for: use a `with park(store)` inside")

        @functools.wraps(function)
        def parked(*arguments: Any, **keywords: Any) -> Any:
            return self._run(function, arguments, keywords)

        return parked

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled() and not self._store._usable():
            return function(*arguments, **keywords)  # evaluation needs no store
        again = Recompute(function, arguments, keywords) if self._on_loss == "recompute" else None
        region = self._begin(again)
        try:
            with saved_tensors_hooks(region.pack, region.unpack):
                outputs = function(*arguments, **keywords)
        finally:
            region.finish()
        if again is not None:
            again.made(outputs)
        return outputs


class ParkedForward:
    """The forward pass of a module that parks."""

    def __init__(self, region: park, module: torch.nn.Module, own: Callable[..., Any] | None) -> None:
        self._region, self._module, self._own = region, module, own  # own: a forward pass that was set before

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self._own if self._own is not None else type(self._module).forward.__get__(self._module)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._region._run(self.__wrapped__, arguments, keywords)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParkedForward:
        return ParkedForward(self._region, memo.get(id(self._module), self._module), copy.deepcopy(self._own, memo))

    def __reduce__(self) -> tuple[Any, ...]:  # another process has no such store
        return (getattr, (self._module, "forward")) if self._own is None else (_same, (self._own,))


def _same(value: Any) -> Any:
    return value


class hooks(tuple):  # noqa: N801
    """The pair (pack, unpack) for whoever takes hooks of saved tensors, as checkpointing libraries do:

        remat.checkpoint(saved_tensors_hooks=bt.hooks(store))
        with torch.autograd.graph.saved_tensors_hooks(*bt.hooks(store)): ...

    Tensors leave as chunks fill. Arguments are those of `park`. If the store was opened without `size`, what is saved until
    none of it is left (a forward and a backward pass) is measured, and stays.
    """

    def __new__(cls, store: Store, *, min_bytes: int | str = 1 << 20, prefetch: int = 1) -> hooks:
        region = Region(store, min_bytes=parse_bytes(min_bytes), prefetch=prefetch, ends=False)
        return super().__new__(cls, (region.pack, region.unpack))
