# SPDX-License-Identifier: Apache-2.0
"""python -m ballast_torch demo: a small GPT is trained here, and its activations are parked in another process."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from .errors import StoreError
from .parking import park
from .programs import find_program
from .store import Store

MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, hidden = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norms[0](x)).split(hidden, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, hidden)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, layers: int, hidden: int = 256, heads: int = 4, seq: int = 256) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, hidden), nn.Parameter(torch.randn(seq, hidden) * 0.02)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*(Block(hidden, heads) for _ in range(layers))), nn.LayerNorm(hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.embed(tokens) + self.place))
        return F.cross_entropy((x @ self.embed.weight.t())[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@contextlib.contextmanager
def local_store(capacity: str) -> Iterator[str]:
    """An activation-store of this machine's memory that ends with the block; gives its address."""
    with tempfile.TemporaryDirectory(prefix="ballast-torch-") as folder:
        reading, writing = os.pipe()
        address = f"unix:{folder}/store"
        with open(f"{folder}/log", "w+") as log:
            process = subprocess.Popen([find_program("activation-store"), "--listen", address, "--capacity", capacity,
                                        "--ready-fd", str(writing), "--lifeline-fd", "0"], pass_fds=[writing],
                                       stdin=subprocess.PIPE, stdout=log, stderr=log)
            os.close(writing)
            try:
                ready, _, _ = select.select([reading], [], [], 30)
                if not ready or not os.read(reading, 1):
                    log.seek(0)
                    raise StoreError(f"activation-store did not start: {log.read().strip()}", status="UNAVAILABLE",
                                     store=address)
                yield address
            finally:
                os.close(reading)
                process.terminate()
                process.wait(30)


class Watch:
    """What a store holds of this process, looked at a few hundred times a second."""

    def __init__(self, store: Store) -> None:
        self.samples: list[tuple[float, float]] = []
        self._store, self._ending, self._begin = store, threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ending.wait(0.002):
            self.samples.append((time.monotonic() - self._begin, self._store.stats()["held"] / MIB))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join()


def train(layers: int, steps: int, store: Store, parks: bool) -> tuple[list[str], float, float, list[tuple[float, float]]]:
    """Losses (hexadecimal, every bit), seconds of a step, most MiB of saved tensors here, and those over a step's time."""
    torch.manual_seed(0)
    model = Gpt(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = Path(__file__).read_bytes() * 8
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    losses, times, samples = [], [], []
    for step in range(steps):
        if step == 1:
            store.reset_peak()
        batch = torch.stack([tokens[at:at + 256] for at in range(37 * step, 37 * step + 16 * 256, 256)])
        region = park(store, min_bytes=64 << 10) if parks else park(store, min_bytes=1 << 60)
        begin = time.monotonic()
        with Watch(store) as watch:
            with region:
                loss = model(batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - begin)
        losses.append(float(loss.detach()).hex())
        samples = watch.samples
    return losses, sorted(times[1:])[len(times[1:]) // 2], store.stats()["held_peak"] / MIB, samples


def picture(path: str, without: list[tuple[float, float]], parked: list[tuple[float, float]]) -> None:
    """Both curves over one step, as SVG."""
    width, height, left, bottom = 720, 320, 60, 40
    longest = max(at for at, _ in without + parked) or 1.0
    most = max(held for _, held in without + parked) or 1.0

    def curve(samples: list[tuple[float, float]], colour: str) -> str:
        points = " ".join(f"{left + (width - left - 20) * at / longest:.1f},"
                          f"{height - bottom - (height - bottom - 40) * held / most:.1f}" for at, held in samples)
        return f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             f'<text x="{left}" y="22">Saved activations in the training process over one step (MiB)</text>',
             f'<path d="M{left} 40V{height - bottom}H{width - 20}" fill="none" stroke="#888"/>',
             f'<text x="{left - 8}" y="45" text-anchor="end">{most:.0f}</text>',
             f'<text x="{left - 8}" y="{height - bottom}" text-anchor="end">0</text>',
             f'<text x="{width - 20}" y="{height - 14}" text-anchor="end">{longest:.2f} s</text>',
             curve(without, "#c0392b"), curve(parked, "#2471a3"),
             f'<text x="{left + 10}" y="{height - 14}" fill="#c0392b">without a store</text>',
             f'<text x="{left + 140}" y="{height - 14}" fill="#2471a3">parked</text>', "</svg>"]
    Path(path).write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ballast_torch demo", description=__doc__)
    parser.add_argument("--store", metavar="ADDRESS", help="a store that runs already; default: one of this machine's memory")
    parser.add_argument("--picture", metavar="FILE.svg", default="ballast-torch-demo.svg")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args(arguments)
    if options.layers < 1 or options.steps < 2:
        parser.error("--layers takes at least 1, --steps at least 2")
    try:
        with contextlib.ExitStack() as stack:
            address = options.store or stack.enter_context(local_store("1 GiB"))
            store = stack.enter_context(Store(address, size="512 MiB", chunk="1 MiB"))
            print(f"{options.layers} layers of hidden 256, 4,096 tokens a step, {torch.get_num_threads()} threads; "
                  f"blocks travel over {store.stats()['path']}")
            runs = {}
            for name, parks in (("without a store", False), ("parked", True)):
                runs[name] = losses, seconds, most, _ = train(options.layers, options.steps, store, parks)
                print(f"{name:>16}: {most:6.1f} MiB of activations at most, {seconds:.3f} s a step, "
                      f"loss {float.fromhex(losses[-1]):.6f}")
            stats = store.stats()
    except (StoreError, OSError) as error:
        print(f"ballast_torch: {error}", file=sys.stderr)
        return 5 if isinstance(error, StoreError) else 3
    same = runs["without a store"][0] == runs["parked"][0]
    print(f"{'the same bits' if same else 'OTHER BITS'} in {options.steps} losses; {stats['parked']} blocks left and came "
          f"back, {stats['late']} late, {stats['waited_seconds']:.2f} s waited, {stats['kept']} tensors kept")
    picture(options.picture, runs["without a store"][3], runs["parked"][3])
    print(f"picture: {options.picture}")
    return 0 if same else 1
