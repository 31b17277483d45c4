#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What parking costs a PyTorch user, with checksums, over shared memory of one machine. Needs a Python with torch:

    BALLAST_BIN=build/bin PYTHONPATH=python BALLAST_CLIENT_LIBRARY=build/lib/libballast-client.so.0 \\
        python tools/bench/torch_park.py [--rounds N]

park: a GPT of --layers layers (hidden 768, 1,024 tokens a step), all of its activations parked, beside
torch.autograd.graph.save_on_cpu and beside nothing. attach: 1F1B over gloo, four ranks of a thread each, rank 0 keeps 3
blocks of 4, beside the same schedule alone. Steps of the ways alternate; medians of ratios of steps that followed each other.
start: import (torch is there already) and the first session."""
import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
except ModuleNotFoundError as missing:
    sys.exit(f"torch_park.py: the package {missing.name} is not there: pip install torch")

RANKS = 4


def median_ratio(times, way, other):
    ratios = sorted(a / b for a, b in zip(times[way], times[other]))
    return statistics.median(ratios), ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def told(what, times, way, other):
    middle, low, high = median_ratio(times, way, other)
    print(f"{what}: {statistics.median(times[way]):.3f} s a step, {statistics.median(times[other]):.3f} s {other}: "
          f"{middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


def park(address, rounds, layers):
    import ballast_torch as bt
    from ballast_torch.demo import Gpt
    torch.manual_seed(0)
    model, tokens = Gpt(layers, hidden=768, heads=12), torch.randint(256, (4, 256))
    with bt.Store(address, job="park", size="1 GiB") as store:
        ways = {"without": contextlib.nullcontext, "save_on_cpu": torch.autograd.graph.save_on_cpu,
                "parked": lambda: bt.park(store)}
        times = {way: [] for way in ways}
        for number in range(rounds + 2):
            for way, region in ways.items():
                model.zero_grad()
                begin = time.monotonic()
                with region():
                    loss = model(tokens)
                loss.backward()
                if number >= 2:
                    times[way].append(time.monotonic() - begin)
        stats = store.stats()
        told(f"park, {stats['bytes'] / (rounds + 2) / 2**20:.0f} MiB a step", times, "parked", "save_on_cpu")
        told("park", times, "parked", "without")
        print(f"  of {stats['loaded']} blocks {stats['late']} late, {stats['waited_seconds'] / (rounds + 2):.4f} s waited a step, "
              f"{stats['held_peak'] / 2**20:.0f} MiB here at most", flush=True)


def attach(rank, folder, addresses, rounds):
    import ballast_torch as bt
    from ballast_torch.demo import Block
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{folder}/init")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden, count, length = 512, 8, 256
    stage = PipelineStage(torch.nn.Sequential(*(Block(hidden, 8) for _ in range(2))), rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, count, loss_fn=torch.nn.functional.mse_loss)
    x, target = torch.randn(2, count * 2, length, hidden)
    times = {"parked": [], "without": []}
    peaks = {}
    with bt.Store(addresses[RANKS - 1 - rank], job="attach", rank=rank, size="512 MiB") as store:
        for number in range(rounds + 2):
            for way, cap in (("without", None), ("parked", 3)):
                attachment = bt.attach(schedule, store, cap=cap)
                store.reset_peak()
                dist.barrier()
                begin = time.monotonic()
                schedule.step(*(() if rank else (x,)), **({"target": target} if rank == RANKS - 1 else {}))
                dist.barrier()
                if number >= 2:
                    times[way].append(time.monotonic() - begin)
                peaks[way] = store.stats()["held_peak"]
                attachment.detach()
        if rank == 0:
            told("attach, cap 3 of 4 blocks", times, "parked", "without")
            print(f"  rank 0 keeps {peaks['parked']} of {peaks['without']} bytes at most: "
                  f"{peaks['parked'] / peaks['without']:.3f}; {store.stats()['late']} of {store.stats()['loaded']} late", flush=True)
    dist.destroy_process_group()


def start(address):
    program = ("import time, torch; begin = time.monotonic(); import ballast_torch as bt; "
               f"store = bt.Store({address!r}); print(time.monotonic() - begin)")
    taken = [float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
             for _ in range(5)]
    print(f"import and open: {statistics.median(taken):.3f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    binaries = os.environ.get("BALLAST_BIN", "build/bin")
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"unix:{folder}/store{i}" for i in range(RANKS)]
        stores = [subprocess.Popen([f"{binaries}/activation-store", "--listen", address, "--capacity", "2 GiB"],
                                   stderr=subprocess.DEVNULL) for address in addresses]
        try:
            time.sleep(1)
            start(addresses[0])
            park(addresses[0], options.rounds, options.layers)
            mp.spawn(attach, (folder, addresses, options.rounds), nprocs=RANKS)
        finally:
            for store in stores:
                store.kill()


if __name__ == "__main__":
    main()
