#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Single tensors at a store: StorageBackend's put, get and free, the pair of hooks, and Megatron-LM's offload handlers, the
real ones where megatron-core is installed."""
import contextlib
import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import a_store, bits, need_torch, scratch  # noqa: E402

need_torch()
import torch  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import ballast_torch as bt  # noqa: E402

torch.set_num_threads(1)


def activations(count, size=96):
    x = torch.randn(size, size, requires_grad=True)
    return [(x * (i + 1)).t() if i % 2 else (x * (i + 1))[8:80] for i in range(count)]


def test_backend(address):
    with bt.Store(address, job="backend", size="32 MiB", chunk="128 KiB") as store:
        backend = bt.StorageBackend(store, min_bytes=1 << 10)
        tensors = activations(20)
        expected = [tensor.detach().clone() for tensor in tensors]
        strides = [tensor.stride() for tensor in tensors]
        payloads = [backend.put(tensor, None) for tensor in tensors]
        assert all(payloads), "something was not taken"
        del tensors
        backend.flush()
        assert backend.put(torch.randn(4), None) is None, "a small tensor was taken"
        for at in (3, 19, 0, 7, 3):
            got = backend.get(payloads[at], None, None)
            assert torch.equal(got, expected[at]) and got.shape == expected[at].shape, at
            assert got.stride() == strides[at], "other strides"
            out = torch.empty_like(expected[at])
            assert backend.get(payloads[at], out, None) is out and torch.equal(bits(out), bits(expected[at]))
        backend.free(payloads[3])
        backend.free(payloads[3])
        try:
            backend.get(payloads[3])
        except bt.StoreError as error:
            assert "freed" in str(error), error
        else:
            raise AssertionError("what was freed is there")
        for payload in payloads:
            backend.free(payload)
        del payloads, got
        gc.collect()
        while store._under_way:
            store.stats()
        assert store.stats()["held"] == 0 == store._alive, store.stats()
    with bt.Store(address, job="full", size="256 KiB", chunk="128 KiB") as store:
        backend = bt.StorageBackend(store, min_bytes=1 << 10)
        payloads = [backend.put(tensor, None) for tensor in activations(20)]
        assert None in payloads and any(payloads) and store.stats()["kept"] == payloads.count(None)
    with bt.Store(address, job="room", size="64 MiB") as store:
        backend = bt.StorageBackend(store)
        for _ in range(40):  # nothing is read: what was freed is had again
            payload = backend.put(torch.randn(1 << 20))
            assert payload is not None, store.stats()
            backend.free(payload)
        backend.flush()
        before, parts = store.stats()["bytes"], torch.randn(1024, 3072).chunk(3, 1)
        payloads = [backend.put(part) for part in parts]
        backend.flush()
        moved = store.stats()["bytes"] - before
        assert moved == 12 << 20, f"parts take their whole storage along: {moved} bytes"
        assert all(torch.equal(backend.get(payload), part) for payload, part in zip(payloads, parts))
    with bt.Store(address, job="grows", chunk="128 KiB") as store:
        backend = bt.StorageBackend(store, min_bytes=1 << 10)
        left = []
        for _ in range(4):
            payloads = [backend.put(torch.randn(1 << 14)) for _ in range(100)]  # 64 KiB each
            left.append(payloads.count(None))
            for payload in payloads:
                backend.free(payload) if payload is not None else None
            del payloads
        assert 0 < left[0] < 100 and left[-1] == 0, left
    print("ok put, get in any order, twice, into memory of the caller; free; a full store gives None")


def test_hooks(address):
    with bt.Store(address, job="hooks", size="32 MiB", chunk="128 KiB") as store:
        x = torch.randn(128, 128, requires_grad=True)

        def forward():
            y = x * 2
            for _ in range(6):
                y = checkpoint(lambda z: (z @ z).tanh(), y, use_reentrant=False)
            return y.square().sum()

        expected = torch.autograd.grad(forward(), x)[0]
        pack, unpack = bt.hooks(store, min_bytes=1 << 10)
        for _ in range(30):  # no region ends: what is remembered must not grow
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                loss = forward()
            assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
        assert store.stats()["parked"] > 10, store.stats()
        kept = store.stats()["kept"]
        for _ in range(200):  # no backward pass
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                forward()
        assert store.stats()["kept"] == kept, "slots are not given back"
    with bt.Store(address, job="measured", chunk="128 KiB") as store:
        pack, unpack = bt.hooks(store, min_bytes=1 << 10)
        for _ in range(3):
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                loss = forward()
            assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
        assert store.size > 0 and store.stats()["parked"] > 0, store.stats()
    print("ok a pair of hooks, measured where no size was given")


class Handler:
    """The signatures of Megatron-LM 0.16; those of 0.14 are static."""

    def __init__(self):
        self.plain = 0

    def offload(self, src_tensor, pin_memory=True, use_cpu_pool=True):
        self.plain += 1
        return (src_tensor.device, src_tensor.clone(), use_cpu_pool)

    def reload(self, state, non_blocking=None):
        return state[1]


class StaticHandler:
    @staticmethod
    def offload(src_tensor, pin_memory=True):
        return (src_tensor.device, src_tensor.clone())

    @staticmethod
    def reload(state, non_blocking=None):
        return state[1]


def test_megatron(address):
    handlers = [Handler, StaticHandler]
    with contextlib.suppress(ImportError):
        from megatron.core.pipeline_parallel.fine_grained_activation_offload import ChunkOffloadHandler
        handlers.append(ChunkOffloadHandler)
    for kind in handlers:
        before = {name: vars(kind)[name] for name in ("offload", "reload")}
        with bt.Store(address, job="megatron", size="32 MiB") as store:
            own = kind not in (Handler, StaticHandler)
            uninstall = bt.megatron.install(store, handler=None if own else kind, min_bytes=1 << 10)
            handler = kind.__new__(kind) if own else kind()  # its streams need a GPU
            tensors = activations(8)
            states = [handler.offload(tensor, pin_memory=False) for tensor in tensors]
            assert all(isinstance(state, tuple) for state in states), "Megatron-LM knows what is away by that"
            for tensor, state in zip(tensors, states):
                assert torch.equal(handler.reload(state), tensor)
            assert store.stats()["parked"] + (store._alive > 0) > 0 and getattr(handler, "plain", 0) == 0
            if not own:
                small = handler.offload(torch.ones(2), pin_memory=False)
                assert small[0] == torch.device("cpu") and torch.equal(handler.reload(small), torch.ones(2))
            uninstall()
            assert {name: vars(kind)[name] for name in before} == before, "not put back"
    print(f"ok Megatron-LM's handlers: {', '.join(kind.__qualname__ for kind in handlers)}")
    try:
        bt.megatron.install(None, handler=object)
    except TypeError as error:
        assert "has no offload()" in str(error), error
    else:
        raise AssertionError("any class will do")


def main():
    with scratch() as folder, a_store(folder) as service:
        test_backend(service.address)
        test_hooks(service.address)
        test_megatron(service.address)


if __name__ == "__main__":
    main()
