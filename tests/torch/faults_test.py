#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ballast_torch where things go wrong: the store is killed at every chunk that leaves or comes back, or stands still; the GIL
is held for longer than a session lives without a sign of life; the process forks, for a data loader and otherwise; another gRPC
is in the process; nobody closes the store."""
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import weakref

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import BIN, a_store, need_torch, same, scratch  # noqa: E402

need_torch()
import torch  # noqa: E402
from torch import nn  # noqa: E402

import ballast_torch as bt  # noqa: E402

torch.set_num_threads(1)
OPTIONS = dict(size="32 MiB", chunk="256 KiB", deadline=5)


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))))


def gradients(model, x, run=None):
    model.zero_grad()
    loss = (run or model)(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


class Edges:
    """Calls `act` just before the at-th chunk is evicted or loaded."""

    def __init__(self, store, at, act):
        self.count, self.at, self.act = 0, at, act
        for name in ("_evict", "_start_load"):
            setattr(store, name, self.counted(getattr(store, name)))

    def counted(self, original):
        def call(*arguments):
            self.count += 1
            if self.count == self.at:
                self.act()
            return original(*arguments)
        return call


def test_killed_at_every_edge(folder):
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    at = lost = runs = 0
    while True:
        at += 1 if os.environ.get("BALLAST_SOAK") else 5
        runs += 1
        with a_store(folder, name=f"edge{at}") as service:
            store = bt.Store(service.address, job="edges", **OPTIONS)
            edges = Edges(store, at, service.kill)
            run = bt.park(store, min_bytes=1 << 12, on_loss="recompute", prefetch=at % 3)(model.forward)
            assert same(gradients(model, x, run), expected), f"killed at edge {at}"
            assert same(gradients(model, x, run), expected), f"the step after edge {at}"
            lost += store.stats()["recomputed"]
            store.close()
            if edges.count < at:
                break
    assert runs > 10 and lost > runs // 3, (runs, lost)
    print(f"ok a store killed at {runs} of {at - 1} edges: the same bits, {lost} regions made again")


def test_standing_still(folder):
    """A store that is stopped is no hang: the call gives up at its deadline. When it goes on, so does training."""
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    with a_store(folder, name="stops") as service:
        store = bt.Store(service.address, job="stops", **{**OPTIONS, "deadline": 1})
        with bt.park(store, min_bytes=1 << 12):
            loss = model(x).square().mean()
        while store._evicting:
            store.stats()
        os.kill(service.pid, signal.SIGSTOP)
        begin = time.monotonic()
        try:
            loss.backward()
        except bt.BlockLost as error:
            assert service.address in str(error), error
        else:
            raise AssertionError("a stopped store gave its blocks back")
        took = time.monotonic() - begin
        assert took < 20, f"{took:.1f} s"
        os.kill(service.pid, signal.SIGCONT)
        del loss
        deadline = time.monotonic() + 60
        while True:
            before = store.stats()["parked"]
            assert same(gradients(model, x, bt.park(store, min_bytes=1 << 12, on_loss="recompute")(model.forward)), expected)
            if store.stats()["parked"] > before:
                break
            assert time.monotonic() < deadline, store.stats()
            time.sleep(0.2)
        store.close()
    print("ok a stopped store is an error in time, and is used again")


def test_exit_after_a_loss(folder):
    """A process that caught a BlockLost ends as others do."""
    program = """
import os, signal, sys
import torch, ballast_torch as bt
address, pid = sys.argv[1], int(sys.argv[2])
store = bt.Store(address, size="128 MiB", deadline=1)
w = torch.nn.Parameter(torch.randn(1 << 20))
with bt.park(store):
    loss = sum(torch.sin(w * k).sum() for k in range(1, 31))
while store._evicting:
    store.stats()
os.kill(pid, signal.SIGSTOP)
try:
    loss.backward()
except bt.BlockLost:
    print("lost")
os.kill(pid, signal.SIGCONT)
"""
    with a_store(folder, name="exit") as service:
        path = os.path.dirname(os.path.dirname(bt.__file__))
        done = subprocess.run([sys.executable, "-c", program, service.address, str(service.pid)], capture_output=True,
                              text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0 and done.stdout == "lost\n", (done.returncode, done.stdout, done.stderr)
    print("ok the end of a process that lost blocks")


def test_nothing_stays_of_a_loss(folder):
    """What a step held is free as soon as the caller lets go of it, also while the store is gone."""
    model, x = a_model(), torch.randn(512, 128)

    def step(store, act):
        with bt.park(store, min_bytes=1 << 12, prefetch=2):
            mine = model(x)
        while store._evicting:
            store.stats()
        act()
        try:
            mine.square().mean().backward()
        except bt.BlockLost:
            return weakref.ref(mine)
        raise AssertionError("no block was lost")

    with a_store(folder, name="leaves") as service:
        store = bt.Store(service.address, job="leaves", **OPTIONS)
        gone = [step(store, service.kill)]

        def fails():
            loss = (x.clone().requires_grad_() * 2).sum()
            gone.append(weakref.ref(loss))
            with bt.park(store):  # looks for the store
                pass

        store._reopen_at = 0
        fails()
        gc.collect()
        stats = store.stats()
        assert stats["held"] == store._alive == store._need == 0, (stats, store._alive, store._need)
        assert [ref() for ref in gone] == [None, None], "a tensor of a step that failed lives on"
        store.close()
    print("ok nothing stays of a step that lost blocks")


def leases(address):
    done = subprocess.run([os.path.join(BIN, "ballastctl"), "leases", "list", "--store", address], capture_output=True,
                          text=True, check=True)
    return done.stdout.splitlines()[1:]


def threads():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads"))


def test_nobody_closes(folder):
    """A store that is let go of, or whose process ends, in the middle of evicts and loads gives back what it borrowed."""
    def use(address, path):
        store = bt.Store(address, **OPTIONS, path=path)
        x = torch.randn(1 << 20, requires_grad=True)
        with bt.park(store):
            loss = (x * 2).sin().sin()
        loss.register_hook(lambda gradient: 1 / 0)
        try:
            loss.sum().backward()
        except ZeroDivisionError:
            pass

    with a_store(folder, "--data-tcp", "127.0.0.1:0", name="open") as service:
        before = threads(), len(os.listdir("/proc/self/fd"))
        for path in ("shm", "tcp", "shm"):
            use(service.address, path)
            gc.collect()
        assert leases(service.address) == [], leases(service.address)
        after = threads(), len(os.listdir("/proc/self/fd"))
        assert after[1] <= before[1] + 8 and after[0] <= before[0] + 16, f"threads, descriptors: {before}, then {after}"
        program = """
import sys
import torch, ballast_torch as bt
store = bt.Store(sys.argv[1], size="32 MiB", path=sys.argv[2])
x = torch.randn(1 << 20, requires_grad=True)
with bt.park(store):
    loss = (x * 2).sin().sin()
"""
        path = os.path.dirname(os.path.dirname(bt.__file__))
        for way in ("shm", "tcp"):
            done = subprocess.run([sys.executable, "-c", program, service.address, way], capture_output=True, text=True,
                                  timeout=120, env={**os.environ, "PYTHONPATH": path})
            assert done.returncode == 0 and done.stderr == "", (done.returncode, done.stderr)
            assert leases(service.address) == [], f"after the end of a process: {leases(service.address)}"
    print("ok stores that nobody closes")


def test_restarted(folder):
    """A store that was restarted is another one: what it held is lost, and it is used again."""
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    with a_store(folder, name="again") as service:
        store = bt.Store(service.address, job="again", **OPTIONS)
        run = bt.park(store, min_bytes=1 << 12, on_loss="recompute")(model.forward)
        assert same(gradients(model, x, run), expected)
        service.kill()
        assert same(gradients(model, x, run), expected)
        with a_store(folder, name="again"):
            deadline = time.monotonic() + 60
            while True:
                before = store.stats()["bytes"]
                assert same(gradients(model, x, run), expected)
                if store.stats()["bytes"] > before and store._client.lost is None:
                    break
                assert time.monotonic() < deadline, store.stats()
                time.sleep(0.2)
            store.close()
    print("ok a restarted store is used again")


def test_hooks_after_a_restart(folder):
    """What has no regions uses a restarted store again, too."""
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    with a_store(folder, name="hooks") as service:
        store = bt.Store(service.address, job="hooks", **OPTIONS)
        pair = bt.hooks(store, min_bytes=1 << 12)

        def run(x):
            with torch.autograd.graph.saved_tensors_hooks(*pair):
                return model(x)

        assert same(gradients(model, x, run), expected)
        service.kill()
        with a_store(folder, name="hooks"):
            deadline, before = time.monotonic() + 60, store.stats()["bytes"]
            while store.stats()["bytes"] == before or store._client.lost is not None:
                assert same(gradients(model, x, run), expected)
                assert time.monotonic() < deadline, store.stats()
                time.sleep(0.2)
            store.close()
    print("ok hooks use a restarted store again")


def test_filling_while_restarted(folder):
    """What has not left yet when the store is restarted has no slot at the new one."""
    x = torch.randn(64, 1024, requires_grad=True)  # as large as a chunk
    expected = torch.autograd.grad((x * 2).sin().square().sum(), x)[0]
    small = torch.randn(16, 1024, requires_grad=True)
    for way in ("hooks", "nested"):
        with a_store(folder, name=way) as service:
            store = bt.Store(service.address, job=way, **OPTIONS)
            outer = torch.autograd.graph.saved_tensors_hooks(*bt.hooks(store, min_bytes=1 << 12)) if way == "hooks" else \
                bt.park(store, min_bytes=1 << 12)
            with outer:
                first = (small * 2).square().sum()  # a part of a chunk
                if way == "hooks":
                    first.backward()
                service.kill()
                with a_store(folder, name=way):
                    deadline = time.monotonic() + 60
                    while store._client.lost is not None or not store._client.alive():
                        assert time.monotonic() < deadline, "it is not found again"
                        with store._lock:
                            store._client.alive()
                            store._reopen_at = 0
                            store._begin_region()
                    losses = [(x * 2).sin().square().sum() for _ in range(3)]
                    while store._evicting:
                        store.stats()
                    assert not any("being filled" in said for said in store._said), store._said
                    assert all(torch.equal(torch.autograd.grad(loss, x)[0], expected) for loss in losses)
                    if way == "nested":
                        assert torch.equal(torch.autograd.grad(first, small)[0], 8 * small.detach())
                    del losses, first
                    store.close()
    print("ok what has not left when the store is restarted")


def test_draining(folder):
    """A store that is to end lets what it has be loaded and gets nothing more: no step is lost."""
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    with a_store(folder, "--drain", "30", name="drains") as service:
        store = bt.Store(service.address, job="drains", **OPTIONS)
        run = bt.park(store, min_bytes=1 << 12)(model.forward)
        assert same(gradients(model, x, run), expected)
        with bt.park(store, min_bytes=1 << 12):
            loss = model(x).square().mean()
        os.kill(service.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while not store._client.is_draining():
            assert time.monotonic() < deadline, "it does not say so"
            time.sleep(0.05)
        model.zero_grad()
        loss.backward()
        assert same([loss.detach(), *(p.grad for p in model.parameters())], expected), "of what was there"
        before = store.stats()["bytes"]
        for _ in range(2):
            assert same(gradients(model, x, run), expected)
        assert store.stats()["bytes"] == before and store.stats()["lost"] == 0, store.stats()
        store.close()
        service.process.wait(30)
    print("ok a store that drains")


def test_neighbours(folder):
    """Stores that were opened alike, in one process or several, leave each other alone; so do ranks of one job."""
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    with a_store(folder, name="shared") as service:
        first = bt.Store(service.address, **OPTIONS)
        with bt.park(first, min_bytes=1 << 12):
            loss = model(x).square().mean()
        second = bt.Store(service.address, **OPTIONS)
        model.zero_grad()
        loss.backward()
        assert same([loss.detach(), *(p.grad for p in model.parameters())], expected) and first.stats()["lost"] == 0
        first.close()
        second.close()
        ranks = [bt.Store(service.address, job="ranks", rank=rank, **{**OPTIONS, "size": size})
                 for rank, size in enumerate(("32 MiB", "64 MiB"))]
        for store in ranks:
            assert same(gradients(model, x, bt.park(store, min_bytes=1 << 12)(model.forward)), expected)
            assert store.stats()["parked"] > 0 and store.stats()["kept"] == 0, store.stats()
            store.close()
    print("ok neighbours at a store")


def test_gil(folder):
    """Sessions are renewed by a thread of the library, which needs no Python."""
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    seconds = 30 if os.environ.get("BALLAST_SOAK") else 7
    with a_store(folder, "--ttl", "2", "--grace", "1", name="gil") as service:
        with bt.Store(service.address, job="gil", **OPTIONS) as store:
            model.zero_grad()
            with bt.park(store, min_bytes=1 << 12):
                loss = model(x).square().mean()
            ctypes.PyDLL(None).sleep(seconds)  # unlike CDLL, with the GIL
            loss.backward()
            assert same([loss.detach(), *(p.grad for p in model.parameters())], expected)
            assert store.stats()["lost"] == 0
    print(f"ok {seconds} s with the GIL held, at a store that gives sessions 3")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.full((128,), float(at))


def use_in_child(store, loss, queue):
    saved = loss.grad_fn.next_functions[0][0]  # of square(); torch itself refuses backward() here
    for use in (lambda: saved._saved_self, lambda: bt.park(store).__enter__(), store.close):
        try:
            use()
        except bt.StoreError as error:
            queue.put(str(error))
    os._exit(0)


def test_forks(folder):
    model, x = a_model(), torch.randn(512, 128)
    expected = gradients(model, x)
    with a_store(folder, name="forks") as service, bt.Store(service.address, job="forks", **OPTIONS) as store:
        model.zero_grad()
        with bt.park(store, min_bytes=1 << 12):
            loss = model(x).square().mean()
        fork = multiprocessing.get_context("fork")
        queue = fork.SimpleQueue()
        child = fork.Process(target=use_in_child, args=(store, loss, queue))
        child.start()
        with store._lock:  # as by a thread that is in the middle of a backward pass
            locked = fork.Process(target=lambda: use_in_child(store, loss, fork.SimpleQueue()))
            locked.start()
            locked.join(60)
        assert locked.exitcode == 0, "a child waits for a lock that nobody holds there"
        child.join(60)
        assert child.exitcode == 0, child.exitcode
        for _ in range(3):
            text = queue.get()
            assert "forked" in text and f"process {os.getpid()}" in text, text
        for batch in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=4, multiprocessing_context="fork"):
            assert batch.shape == (8, 128)
        loss.backward()
        assert same([loss.detach(), *(p.grad for p in model.parameters())], expected)
        assert store.stats()["lost"] == 0 and store._client.lost is None
    print("ok forked children cannot use the store and do not harm it; four workers of a data loader")


def test_beside_grpc(folder):
    """Another gRPC in the process, loaded before or after."""
    program = """
import sys, os
sys.path.insert(0, {python!r})
def grpc_works():
    import grpc
    from concurrent import futures
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('t.T', {{
        'Echo': grpc.unary_unary_rpc_method_handler(lambda request, context: request)}}),))
    port = server.add_insecure_port('127.0.0.1:0')
    server.start()
    with grpc.insecure_channel(f'127.0.0.1:{{port}}') as channel:
        assert channel.unary_unary('/t.T/Echo')(b'hello', timeout=30) == b'hello'
    server.stop(None)
def store_works():
    import torch, ballast_torch as bt
    with bt.Store({address!r}, job='beside', size='8 MiB') as store:
        x = torch.randn(512, 512, requires_grad=True)
        with bt.park(store):
            loss = (x * 2).tanh().sum()
        loss.backward()
        assert store.stats()['parked'] > 0
for work in ({first}, {second}, {first}):
    work()
"""
    found = subprocess.run([sys.executable, "-c", "import grpc"], capture_output=True)
    if found.returncode != 0:
        print("SKIPPED beside grpcio: this Python has none")
        return
    with a_store(folder, name="grpc") as service:
        for first, second in (("grpc_works", "store_works"), ("store_works", "grpc_works")):
            text = program.format(python=os.path.dirname(os.path.dirname(bt.__file__)), address=service.address, first=first,
                                  second=second)
            done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{first} first: {done.returncode}\n{done.stderr}"
    print("ok beside grpcio, imported before and after")


def main():
    with scratch() as folder:
        test_killed_at_every_edge(folder)
        test_standing_still(folder)
        test_exit_after_a_loss(folder)
        test_nothing_stays_of_a_loss(folder)
        test_nobody_closes(folder)
        test_restarted(folder)
        test_hooks_after_a_restart(folder)
        test_filling_while_restarted(folder)
        test_draining(folder)
        test_neighbours(folder)
        test_gil(folder)
        test_forks(folder)
        test_beside_grpc(folder)


if __name__ == "__main__":
    main()
