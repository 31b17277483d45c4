#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ballast_torch.park: gradients have the bits of a run without it, whatever is saved and however it is asked for; memory that
was parked is free; what cannot be parked stays; mistakes are named."""
import contextlib
import copy
import ctypes
import gc
import io
import os
import sys
import time
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import a_store, need_torch, same, scratch  # noqa: E402

need_torch()
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts  # noqa: E402

import ballast_torch as bt  # noqa: E402

torch.set_num_threads(1)
warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
SMALL = dict(min_bytes=1 << 10)


class Block(nn.Module):
    """Attention with a mask, dropout, a gate in one piece with its input, and a buffer."""

    def __init__(self, hidden=64, heads=4):
        super().__init__()
        self.heads, self.norm, self.qkv = heads, nn.LayerNorm(hidden), nn.Linear(hidden, 3 * hidden)
        self.out, self.up, self.down = nn.Linear(hidden, hidden), nn.Linear(hidden, 4 * hidden), nn.Linear(2 * hidden, hidden)
        self.register_buffer("mask", torch.ones(64, 64).tril().bool())

    def forward(self, x):
        rows, length, hidden = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).split(hidden, -1))
        scores = (q @ k.transpose(-1, -2)).masked_fill(~self.mask[:length, :length], -1e9).softmax(-1)
        x = x + self.out((F.dropout(scores, 0.1, self.training) @ v).transpose(1, 2).reshape(rows, length, hidden))
        gate, value = self.up(x).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Model(nn.Module):
    def __init__(self, layers=4, mode="none"):
        super().__init__()
        self.embed, self.layers, self.mode = nn.Embedding(97, 64), nn.ModuleList(Block() for _ in range(layers)), mode

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            if self.mode == "full":
                x = checkpoint(layer, x, use_reentrant=False)
            elif self.mode == "selective":
                def keep(context, op, *arguments, **keywords):
                    saved = op in (torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
                    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE
                x = checkpoint(layer, x, use_reentrant=False,
                               context_fn=lambda: create_selective_checkpoint_contexts(keep))
            else:
                x = layer(x)
        return F.cross_entropy((x @ self.embed.weight.t()).flatten(0, 1), tokens.flatten())  # tied


def gradients(model, tokens, region=None):
    model.zero_grad()
    torch.manual_seed(3)
    with region if region is not None else contextlib.nullcontext():
        loss = model(tokens)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def nothing_parked(store):
    """Every slot is free again, and nothing is counted as here."""
    gc.collect()
    deadline = time.monotonic() + 30
    while True:
        held, client = store.stats()["held"], store._client
        if held == store._alive == store._under_way == 0:
            assert len(client._slots) == sum(map(len, client._free.values())), "a slot is not given back"
            return
        assert time.monotonic() < deadline, (store.stats(), store._alive, store._under_way)
        time.sleep(0.01)


def test_models(address):
    tokens = torch.randint(97, (8, 64), generator=torch.Generator().manual_seed(1))
    for mode in ("none", "full", "selective"):
        torch.manual_seed(0)
        model = Model(mode=mode)
        expected = gradients(model, tokens)
        for case, options, size in (("measured first", {}, None), ("parked", {}, "64 MiB"), ("full store", {}, "512 KiB"),
                                    ("no prefetch", {"prefetch": 0}, "64 MiB"), ("far prefetch", {"prefetch": 9}, "64 MiB")):
            with bt.Store(address, job=case, size=size, chunk="256 KiB") as store:
                for _ in range(3):
                    got = gradients(model, tokens, bt.park(store, **SMALL, **options))
                    assert same(got, expected), f"{mode}, {case}: other bits"
                    gc.collect()
                stats = store.stats()
                assert stats["parked"] > 3 and stats["lost"] == 0 and stats["held"] == 0, (mode, case, stats)
                assert (stats["kept"] > 0) == (case in ("full store", "measured first")), (mode, case, stats)
                assert stats["held_peak"] > 0, (mode, case, stats)
                nothing_parked(store)
    print("ok the same bits: kept, parked, a full store; checkpointing none, full, selective")


def test_kinds(address):
    """Everything that autograd can save."""
    def kinds():
        torch.manual_seed(5)
        leaf = {kind: torch.randn(64, 64, dtype=kind, requires_grad=True)
                for kind in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)}
        a = leaf[torch.float32] * 1.5
        double, half, bf16, z = (leaf[kind] * 2 for kind in (torch.float64, torch.float16, torch.bfloat16, torch.complex64))
        eight = (a * 4).to(torch.float8_e4m3fn)
        terms = [
            (a * (a > 0)).sum(), (a.t() * a).sum(), (a.t().contiguous() * a.t()).sum(),  # bool, transposed
            (a[3:40, 5:30] * a[3:40, 6:31]).sum(), (a[::2, ::3] * a[::2, ::3]).sum(),  # views of one storage
            (a.expand(3, 64, 64) * torch.randn(3, 64, 64)).sum(), (a[:0] * a[:0]).sum(),  # strides of 0, no elements
            a.detach().mul(a).sum(), (a.view(4096) * a.view(4096)).sum(), torch.linalg.solve(a + 9 * torch.eye(64), a).sum(),
            (double * double).sum().float(), (half * half).sum().float(), (bf16 * bf16).sum().float(),
            (z * z.conj()).sum().real, torch.view_as_real(z).square().sum(), (z.conj() * z.conj()).sum().real,
            (a * eight.float()).sum(), a.sort(dim=-1).values.mul(a).sum(), a.max(dim=0).values.sum(),
            F.embedding(torch.arange(64).repeat(64), a).square().mean(), (a @ a).relu().sum(), a.cumsum(0).tanh().sum(),
            torch.where(a > 0, a, -a).square().sum(), F.conv1d(a[None], a[:, :, None].expand(64, 64, 3) * 0.1).square().mean(),
            F.relu(torch.nested.as_nested_tensor([a, a[:30]])).to_padded_tensor(0.0).square().sum(),
        ]
        return terms, list(leaf.values())

    terms, leaves = kinds()
    expected = [torch.autograd.grad(term, leaves, allow_unused=True, retain_graph=True) for term in terms]
    with bt.Store(address, job="kinds", size="32 MiB", chunk="64 KiB") as store:
        with bt.park(store, min_bytes=1):
            terms, leaves = kinds()
        order = torch.randperm(len(terms)).tolist()  # not the reverse of the forward pass
        for at in order:
            got = torch.autograd.grad(terms[at], leaves, allow_unused=True, retain_graph=True)
            assert same(got, expected[at]), f"term {at}"
        del got, terms
        assert store.stats()["parked"] > 5 and store.stats()["late"] > 0, store.stats()
        nothing_parked(store)
    print("ok views, aliases, strides, empty, nested, bool, complex, halves, eights: the same bits in any order")


def test_graphs_used_twice(address):
    with bt.Store(address, job="twice", size="64 MiB", chunk="64 KiB") as store:
        x = torch.randn(256, 256, requires_grad=True)

        def forward():
            y = x * 2
            for _ in range(4):
                y = (y @ y).tanh()
            return y.square().sum()

        expected = torch.autograd.grad(forward(), x)[0]
        with bt.park(store, **SMALL):
            loss = forward()
        for _ in range(3):
            assert torch.equal(torch.autograd.grad(loss, x, retain_graph=True)[0], expected), "a retained graph"
        first, = torch.autograd.grad(forward(), x, create_graph=True)
        twice = torch.autograd.grad(first.square().sum(), x)[0]
        with bt.park(store, **SMALL):
            first, = torch.autograd.grad(forward(), x, create_graph=True)
            again = first.square().sum()
        assert torch.equal(torch.autograd.grad(again, x)[0], twice), "a double backward pass"
        del loss, first, again
        nothing_parked(store)
    print("ok retained graphs, double backward passes, backward after the region")


class Returns(torch.autograd.Function):
    """Its gradient is what it saved, as a fused loss that makes its gradient in the forward pass."""

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(torch.cos(w) if x is None else x)
        return torch.sin(w).sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.saved_tensors[0], None


class Looks(torch.autograd.Function):
    strides = []

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        Looks.strides.append(ctx.saved_tensors[0].stride())
        return gradient.expand_as(ctx.saved_tensors[0])


def test_handed_out(address):
    """A gradient that is a saved tensor is nobody else's memory: autograd adds to it in place, others are written elsewhere."""
    for rows in (64, 1024, 3000):  # of 4 KiB: a part of a chunk, a chunk, several segments
        for needs_grad in (False, True):
            with bt.Store(address, job="handed-out", size="64 MiB") as store:
                w = nn.Parameter(torch.randn(rows, 1024))
                x = (torch.randn(rows, 1024, requires_grad=True) * 2)[:, ::2].repeat(1, 2) if needs_grad else None
                with bt.park(store, **SMALL):
                    first, second = Returns.apply(w, x), Returns.apply(w * 1, x)
                once = torch.cos(w.detach()) if x is None else x.detach().clone()
                for times in range(1, 4):
                    (first if times < 3 else second).backward(retain_graph=True)
                    assert torch.equal(w.grad, sum([once] * times, torch.zeros_like(once))), (rows, needs_grad, times)
                del first, second
                nothing_parked(store)
    for inside in (False, True):
        with bt.Store(address, job="handed-out", size="64 MiB") as store:
            pack, unpack = bt.hooks(store, **SMALL)
            weights = [nn.Parameter(torch.randn(256, 256)) for _ in range(4)]
            for w in weights:
                with bt.park(store, **SMALL) if inside else torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                    loss = Returns.apply(w, None)
                    if inside:
                        loss.backward()
                loss.backward() if not inside else None
                del loss
                store.stats()
            assert same([w.grad for w in weights], [torch.cos(w.detach()) for w in weights]), "a gradient was written over"
    with bt.Store(address, job="views", size="64 MiB") as store:
        x = torch.randn(8, 64, 384, requires_grad=True) * 2
        views = [part.unflatten(-1, (4, 32)).transpose(1, 2) for part in x.chunk(3, -1)]
        with bt.park(store, **SMALL):
            loss = sum(Looks.apply(view) for view in views)
        loss.backward()
        assert sorted(Looks.strides) == sorted(view.stride() for view in views), "other strides"
    print("ok gradients that are saved tensors; strides of views")


def test_copies(address):
    """A copy of a module that parks computes with its own parameters and parks; it can be pickled."""
    with bt.Store(address, job="copies", size="64 MiB") as store:
        model = nn.Sequential(nn.Linear(512, 512), nn.GELU())
        model[0] = bt.park(store, **SMALL)(model[0])
        x = torch.randn(64, 512)
        other = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert model(x).abs().sum() > 0 == other(x).abs().sum(), "a copy computes with the parameters of the original"
        before = store.stats()["bytes"]
        other(torch.randn(64, 512, requires_grad=True) * 2).sum().backward()
        assert store.stats()["bytes"] > before, "a copy does not park"
        buffer = io.BytesIO()
        torch.save(other, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        assert torch.equal(loaded(x), other(x)) and torch.equal(copy.deepcopy(loaded)(x), other(x))
    with torch.no_grad():
        assert torch.equal(model(x), nn.functional.gelu(nn.functional.linear(x, model[0].weight, model[0].bias)))
    try:
        model(x)
    except bt.StoreError as error:
        assert "closed" in str(error), error
    else:
        raise AssertionError("a closed store parks")
    del model[0].forward
    model(x)
    print("ok copies of modules that park, pickled ones, evaluation after the store was closed")


def test_in_place(address):
    """A tensor that is changed after it was saved: caught where it stayed, as without us; parked, its old value counts."""
    with bt.Store(address, job="in-place", size="64 MiB") as store:
        for size, options in ((64, {}), (1024, SMALL)):
            x = torch.randn(size, size, requires_grad=True)
            expected = torch.autograd.grad((x * 2).square().sum(), x)[0]
            with bt.park(store, **options):
                y = x * 2
                z = y.square()  # saves y
                y.add_(1)
            if options:
                assert torch.equal(torch.autograd.grad(z.sum(), x)[0], expected), "the value that was saved"
                continue
            try:
                z.sum().backward()
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error) and f"[{size}, {size}]" in str(error), error
            else:
                raise AssertionError("a change in place was not noticed")
        x = torch.randn(512, 512, requires_grad=True)
        with bt.park(store, **SMALL):
            y = x * 2
            a = y.square()
            y.add_(1)
            b = y.square()  # another value of the same storage
        assert torch.equal(torch.autograd.grad(a.sum() + b.sum(), x)[0], 2 * (2 * (x * 2)) + 2 * (2 * (x * 2 + 1)))
    print("ok changes in place")


def test_left_alone(address):
    with bt.Store(address, job="alone", size="64 MiB") as store:
        layer = nn.Linear(512, 512)
        frozen = nn.Parameter(torch.randn(512, 512), requires_grad=False)
        x = torch.randn(512, 512)

        class Tagged(torch.Tensor):
            pass

        cases = {
            "frozen parameters": lambda: (torch.randn(2, 512, requires_grad=True) @ frozen.t()).sum(),
            "parameters and views of them": lambda: layer(torch.randn(2, 512, requires_grad=True)).sum(),
            "small ones": lambda: torch.randn(4, 4, requires_grad=True).mul(2).square().sum(),
            "leaves": lambda: torch.randn(512, 512, requires_grad=True).square().sum(),
            "parts of data": lambda: (x.view(-1)[:4096] * torch.randn(4096, requires_grad=True)).sum(),
            "subclasses": lambda: torch.randn(512, 512, requires_grad=True).as_subclass(Tagged).mul(2).square().sum(),
            "sparse ones": lambda: torch.sparse.mm(x.to_sparse(), torch.randn(512, 2, requires_grad=True)).sum(),
        }
        for name, case in cases.items():
            before = store.stats()
            with bt.park(store, **SMALL):
                loss = case()
            loss.sum().backward() if loss.requires_grad else None
            after = store.stats()
            moved = after["bytes"] - before["bytes"]
            assert moved == 0 or (name in ("small ones", "parts of data") and moved <= 1 << 14), f"{name}: {moved} bytes left"
        marked = torch.randn(512, 512, requires_grad=True) * 2
        marked._TE_do_not_offload = True
        mask = torch.rand(512, 512) > 0.5
        left = []
        for _ in range(3):
            before = store.stats()["bytes"]
            with bt.park(store, **SMALL):
                loss = (torch.randn(512, 512, requires_grad=True).mul(mask)).sum()
            loss.backward()
            left.append(store.stats()["bytes"] - before)
        assert left[1] == left[2] == 0, f"a mask of the user's leaves every time: {left}"
        before = store.stats()["bytes"]
        with bt.park(store, **SMALL):
            loss = marked.square().sum()
        assert store.stats()["bytes"] == before, "what is marked left"
    print("ok parameters, masks, small tensors, parts, subclasses, sparse tensors stay")


def rss():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def test_memory_is_free(address):
    """What left is given back to the allocator: resident memory of this process, without the staging, which is shared."""
    size, count = 8 << 20, 16
    x = torch.randn(size // 4, requires_grad=True)

    def forward():
        y = x * 1.0
        for _ in range(count):
            y = y.sin()
        return y

    def grown(region):
        gc.collect()
        trim = ctypes.CDLL(None).malloc_trim  # glibc keeps much of what is freed to it
        trim(0)
        begin = rss()
        with region:
            y = forward()
        trim(0)
        taken = rss() - begin
        y.sum().backward()
        return taken

    with bt.Store(address, job="memory", size="192 MiB", staging="32 MiB") as store:
        grown(bt.park(store))
        kept, parked = grown(contextlib.nullcontext()), grown(bt.park(store))
        assert kept >= (count - 1) * size, f"{kept} bytes"
        assert parked <= 4 * size, f"{parked} bytes stay of {kept}"
    print(f"ok {kept >> 20} MiB stay without, {parked >> 20} with")


def test_exceptions(address):
    with bt.Store(address, job="exceptions", size="64 MiB", chunk="256 KiB") as store:
        x = torch.randn(256, 256, requires_grad=True)
        for _ in range(20):
            try:
                with bt.park(store, **SMALL):
                    y = (x * 2).tanh()
                    y = y @ y
                    raise KeyError("in the middle")
            except KeyError:
                del y
        nothing_parked(store)
        with bt.park(store, **SMALL), bt.park(store, **SMALL):  # the inner one saves
            loss = (x * 2).tanh().square().sum()
        loss.backward()
        parked = bt.park(store, **SMALL)
        with parked:
            one = (x * 2).tanh().sum()
            with parked:
                two = (x * 3).tanh().sum()
        (one + two).backward()
    print("ok an exception in a forward pass frees its slots, regions nest")


def test_many_segments(address):
    """More slots to load than the library takes tickets."""
    with bt.Store(address, job="segments", size="64 MiB", chunk="64 KiB") as store:
        x = torch.randn(5 << 20, requires_grad=True)  # 320 segments
        with bt.park(store):
            loss = (x * 2).sin().sum()
        loss.backward()
        assert torch.equal(x.grad, torch.autograd.grad((x * 2).sin().sum(), x)[0])
        y = [torch.randn(3 << 20, requires_grad=True) for _ in range(3)]
        with bt.park(store, prefetch=3):
            losses = [(one * 2).sin().sum() for one in y]
        sum(losses).backward()
        assert store.stats()["lost"] == 0
        del loss, losses
        nothing_parked(store)
    print("ok tensors of more slots than there are tickets")


def test_saved_again(address):
    """The same storage after what was made of it is gone, or was changed behind autograd's back."""
    with bt.Store(address, job="again", size="32 MiB", chunk="256 KiB") as store:
        x = torch.randn(128, 128, requires_grad=True)
        with bt.park(store, **SMALL):
            y = x * 2
            for _ in range(3):  # as a gradient penalty does it
                penalty, = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
                assert torch.equal(penalty, 8 * x)
            loss = y.square().sum()
        loss.backward()
        assert torch.equal(x.grad, 8 * x)
        del y, loss, penalty
        nothing_parked(store)
        assert store._need == 0 == store._held, (store._need, store._held)

        v, t = torch.ones(64, 64, requires_grad=True), torch.ones(64, 64)
        for change in (lambda: t.data.fill_(3), lambda: t.numpy().fill(3)):
            t.data.fill_(1)
            store._constants.clear()
            with bt.park(store, **SMALL):
                first = (v * t).sum()
                change()
                second = (v * t).sum()
            assert torch.equal(torch.autograd.grad(second, v)[0], torch.full((64, 64), 3.0)), "bytes of before"
            del first, second
        nothing_parked(store)
        t = torch.ones(64, 64)
        with bt.park(store, **SMALL):
            first = (v * t).sum()
            t.untyped_storage().resize_(0)
            second = (v[:0] * t.data[:0]).sum()
        assert torch.equal(torch.autograd.grad(first + second, v)[0], torch.ones(64, 64)), "a storage that was resized"
        del first, second
        nothing_parked(store)
        for _ in range(40):
            with torch.autograd.graph.saved_tensors_hooks(*bt.hooks(store, **SMALL)):
                loss = (x * 2).tanh().sum()
            loss.backward()
        del loss
        nothing_parked(store)
        assert store.stats()["kept"] == 0
    print("ok storages that are saved again; regions that end half full")


def test_changed_inputs(folder):
    """A lost block is not made again of inputs that are not what they were."""
    with a_store(folder, name="changed") as service:
        store = bt.Store(service.address, job="changed", size="8 MiB")
        leaf = torch.randn(256, 256, requires_grad=True)
        x = leaf * 1
        z = bt.park(store, on_loss="recompute", **SMALL)(lambda y: (y * 2).sin().sum())(x)
        while store._evicting:
            store.stats()
        service.kill()
        with torch.no_grad():
            x.add_(1)
        try:
            z.backward()
        except bt.BlockLost as error:
            assert "changed in place" in str(error) and "[256, 256]" in str(error), error
        else:
            raise AssertionError("made again of other inputs")
        store.close()
    print("ok inputs that were changed in place are noticed")


def test_recompute(address, folder):
    """A wrapped region makes a lost block again, with the same random numbers; without that it is an error that says all."""
    torch.manual_seed(0)
    model, tokens = Model(layers=2), torch.randint(97, (8, 64))
    expected = gradients(model, tokens)
    for on_loss in ("recompute", "raise"):
        with a_store(folder, name=f"dies-{on_loss}") as service:
            store = bt.Store(service.address, job="lost", size="64 MiB", chunk="256 KiB")
            run = bt.park(store, on_loss=on_loss, **SMALL)(lambda: model(tokens))
            model.zero_grad()
            torch.manual_seed(3)
            loss = run()
            service.kill()
            try:
                loss.backward()
            except bt.BlockLost as error:
                assert on_loss == "raise" and error.store == service.address and error.lease > 0 and error.cause
                assert service.address in str(error) and "lost" in str(error), error
            else:
                got = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
                assert on_loss == "recompute" and same(got, expected), "other bits"
                assert store.stats()["recomputed"] == 1, store.stats()
            # Without the store everything stays, and goes on.
            assert same(gradients(model, tokens, bt.park(store, **SMALL)), expected)
            assert store.stats()["held"] >= 0
            store.close()
    with a_store(folder, name="dies-changed") as service:
        bias, x = nn.Parameter(torch.zeros(512)), torch.randn(256, 512, requires_grad=True)
        store = bt.Store(service.address, job="changed", size="64 MiB")
        loss = bt.park(store, on_loss="recompute", **SMALL)(lambda x: torch.sin((x * 2 + bias).sin() * 3).sum())(x)
        with torch.no_grad():
            bias.add_(1)
        while store._evicting:
            store.stats()
        service.kill()
        try:
            loss.backward()
        except bt.BlockLost as error:
            assert "a parameter of shape [512] was changed" in str(error), error
        else:
            raise AssertionError("a block was made again with another parameter")
        store.close()
    print("ok a lost block is made again, or named")


def test_mistakes(address, folder):
    def refused(kind, *words, of):
        try:
            of()
        except kind as error:
            assert all(word in str(error) for word in words), f"{error} does not say {words}"
            return error
        raise AssertionError(f"{words}: nothing was raised")

    nobody = f"unix:{folder}/nobody"
    error = refused(bt.StoreError, nobody, of=lambda: bt.Store(nobody, deadline=1))
    assert error.status == "UNAVAILABLE" and error.store == nobody, error.status
    refused(bt.StoreError, "127.0.0.1:1", of=lambda: bt.Store("127.0.0.1:1", deadline=1))
    assert refused(bt.StoreError, address, of=lambda: bt.Store(address, size="1 TiB")).status == "EXHAUSTED"
    refused(ValueError, "12 XB", of=lambda: bt.Store(address, size="12 XB"))
    refused(ValueError, "cuda:0", of=lambda: bt.Store(address, device="cuda:0"))
    refused(ValueError, "'fast'", "shm", of=lambda: bt.Store(address, path="fast"))
    for options in ({"tls": ("ca",)}, {"tls": "abc"}, {"rank": -1}, {"rank": 2**32}, {"rank": 1.5}, {"deadline": 0},
                    {"deadline": -1}, {"deadline": float("inf")}, {"job": 5}, {"job": "a\n"}, {"device": "gpu"}):
        refused(ValueError, *options, of=lambda: bt.Store(address, **options))
    refused(ValueError, "address", of=lambda: bt.Store(None))
    refused(ValueError, "inf GiB", of=lambda: bt.Store(address, size="inf GiB"))
    store = bt.Store(address, job="mistakes", size="8 MiB")
    refused(ValueError, "on_loss", "'sometimes'", of=lambda: bt.park(store, on_loss="sometimes"))
    refused(ValueError, "prefetch", of=lambda: bt.park(store, prefetch=-1))
    refused(ValueError, "prefetch", of=lambda: bt.park(store, prefetch=1.5))

    def lazy():
        yield x.square()

    refused(TypeError, "lazy", of=lambda: bt.park(store)(lazy))
    refused(ValueError, "wrap a function", of=lambda: bt.park(store, on_loss="recompute").__enter__())
    refused(ValueError, "0", of=lambda: bt.park(store, min_bytes=0))
    x = torch.randn(512, 512, requires_grad=True)
    with bt.park(store):
        loss = (x * 2).tanh().sum()
    store.close()
    store.close()
    refused(bt.StoreError, "closed", of=loss.backward)
    refused(bt.StoreError, "closed", of=lambda: bt.park(store).__enter__())
    assert store.stats()["size"] == 8 << 20
    print("ok mistakes are named")


def test_compile(address):
    with bt.Store(address, job="compile", size="8 MiB") as store:
        x = torch.randn(512, 512, requires_grad=True)

        def parked(x):
            with bt.park(store):
                return (x * 2).tanh().sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for fullgraph in (True, False):
                try:
                    torch.compile(parked, backend="eager", fullgraph=fullgraph)(x)
                except Exception as error:  # dynamo wraps it
                    assert "torch.compile" in str(error) or "bt.park(store)" in str(error), error
                else:
                    raise AssertionError("a region is compiled")
        inside = torch.compile(lambda y: (y * 2).tanh().sum(), backend="aot_eager")
        expected = torch.autograd.grad((x * 2).tanh().sum(), x)[0]
        with bt.park(store):
            loss = inside(x)
        assert torch.equal(torch.autograd.grad(loss, x)[0], expected), "a compiled module in a region"
    print("ok torch.compile of a region is refused, compiled modules in it give the same gradients")


def main():
    with scratch() as folder, a_store(folder) as service:
        address = service.address
        test_models(address)
        test_kinds(address)
        test_graphs_used_twice(address)
        test_handed_out(address)
        test_copies(address)
        test_in_place(address)
        test_left_alone(address)
        test_memory_is_free(address)
        test_exceptions(address)
        test_mistakes(address, folder)
        test_compile(address)
        test_recompute(address, folder)
        test_many_segments(address)
        test_saved_again(address)
        test_changed_inputs(folder)


if __name__ == "__main__":
    main()
