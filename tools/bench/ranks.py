#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks on two cores beside one process with two threads, and beside PyTorch's DDP, by turns.

data          two replicas of one stage, a thread each, against one stage with two threads: the same micro-batches a step
data-parts    one replica whose gradient has two parts against one part: what it costs to add them
ddp           DistributedDataParallel over gloo with two processes, a thread each, against two replicas: the same GPT-2 in
              eager PyTorch, scaled_dot_product_attention, fused AdamW, gradients sent once a step. Needs `torch` in the
              Python that runs this; without it the row is left out, and that is said
tensor        two tensor ranks of one stage, a thread each, against one stage with two threads and whole layers
tensor-parts  one rank whose layers have two parts against whole layers: what it costs to add them

A step's time is the median of a run's steps but the first; a row is the median over rounds of the ratio of two runs, one
after the other. Above 1: what is named first is faster.
"""
import statistics
import subprocess
import sys
import textwrap

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

ROWS = ["data", "data-parts", "ddp", "tensor", "tensor-parts"]

DDP = textwrap.dedent("""
    import sys, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    rank, port, layers, hidden, seq, batch, micro_batches, steps, vocab = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    functional, nn = torch.nn.functional, torch.nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, hidden // 64, 64).permute(2, 0, 3, 1, 4)
            attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attention.transpose(1, 2).reshape(batch, seq, hidden))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
            self.layers, self.norm = nn.Sequential(*[Layer() for _ in range(layers)]), nn.LayerNorm(hidden)

        def forward(self, tokens, labels):
            x = self.tokens(tokens) + self.positions(torch.arange(seq))
            logits = functional.linear(self.norm(self.layers(x)), self.tokens.weight)
            return functional.cross_entropy(logits.view(-1, vocab), labels.reshape(-1))

    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    mine = micro_batches // 2
    for step in range(steps):
        dist.barrier()
        begun = time.perf_counter()
        for i in range(mine):
            tokens = torch.randint(vocab, (batch, seq + 1))
            if i + 1 < mine:
                with model.no_sync():
                    (model(tokens[:, :-1], tokens[:, 1:]) / mine).backward()
            else:
                (model(tokens[:, :-1], tokens[:, 1:]) / mine).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if rank == 0:
            print(time.perf_counter() - begun, flush=True)
""")


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ddp(options):
    """The median of a run's steps but the first."""
    port = free_port()
    arguments = [str(value) for value in (port, options.layers, options.hidden, options.seq, options.micro_batch,
                                          options.micro_batches, options.steps, options.vocab)]
    ranks = [subprocess.Popen([sys.executable, "-c", DDP, str(rank), *arguments], stdout=subprocess.PIPE, text=True)
             for rank in (0, 1)]
    said = [rank.communicate(timeout=measuring.RUN_LIMIT_S)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("PyTorch's processes failed")
    return statistics.median([float(line) for line in said[0].split()][1:])


def ballast(runs, options, threads=1, **parallel):
    job = runs.job(model={"layers": options.layers, "hidden": options.hidden, "seq": options.seq, "vocab": options.vocab,
                          "heads": options.hidden // 64},
                   train={"steps": options.steps, "micro_batch": options.micro_batch,
                          "micro_batches": options.micro_batches, "dtype": options.dtype},
                   pipeline={"stages": 1, "threads": threads}, parallel=parallel)
    return measuring.median_seconds(runs.steps(job)[1:])


def pair_of(row, runs, options):
    """The times of what is named first and second."""
    if row == "data":
        return ballast(runs, options, data=2, data_parts=2), ballast(runs, options, threads=2)
    if row == "data-parts":
        return ballast(runs, options, data_parts=2), ballast(runs, options)
    if row == "ddp":
        return ballast(runs, options, data=2, data_parts=2), ddp(options)
    if row == "tensor":
        return ballast(runs, options, tensor=2, tensor_parts=2), ballast(runs, options, threads=2)
    return ballast(runs, options, tensor_parts=2), ballast(runs, options)


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("--rows", type=measuring.names_of(ROWS), default=ROWS, metavar="A,B", help="(default all)")
    parser.add_argument("--hidden", type=measuring.heads, default=384, metavar="N", help="(default 384)")
    for name, preset, what in (("layers", 6, "of the model"), ("seq", 256, "tokens of a sequence"), ("vocab", 8192, "tokens"),
                               ("micro-batch", 4, "sequences"), ("micro-batches", 8, "of a step, an even number"),
                               ("steps", 4, "of a run")):
        parser.add_argument(f"--{name}", type=measuring.count(2 if name in ("steps", "micro-batches") else 1), default=preset,
                            metavar="N", help=f"{what} (default {preset})")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of the model (default fp32)")
    measuring.add_rounds(parser, 5)
    measuring.add_limit(parser, 20)
    options = parser.parse_args()
    rows = list(options.rows)
    if "ddp" in rows:
        try:
            import torch
        except ImportError as error:
            tell(f"no row ddp: needs PyTorch in this Python: {error}")
            rows.remove("ddp")
    pairs = {row: [] for row in rows}
    with measuring.Runs() as runs:
        for number in measuring.rounds_within(options):
            for row in rows:
                pairs[row].append(pair_of(row, runs, options))
            tell(f"round {number + 1} of {options.rounds}")
    tokens = options.micro_batch * options.micro_batches * options.seq
    print(f"hidden {options.hidden}, {options.layers} layers, seq {options.seq}, vocabulary {options.vocab}, {tokens} tokens a "
          f"step" + (f"; PyTorch {torch.__version__}" if "ddp" in rows else ""))
    names = {"data": ("two replicas", "two threads"), "data-parts": ("two parts", "one part"),
             "ddp": ("two replicas", "DDP"), "tensor": ("two ranks", "two threads"),
             "tensor-parts": ("two parts", "whole layers")}
    for row in rows:
        first, second = (statistics.median(pair[side] for pair in pairs[row]) for side in (0, 1))
        ratios = sorted(pair[1] / pair[0] for pair in pairs[row])
        print(f"{row}: {names[row][0]} {first:.3f} s, {names[row][1]} {second:.3f} s: {statistics.median(ratios):.3f} "
              f"({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)")


main()
