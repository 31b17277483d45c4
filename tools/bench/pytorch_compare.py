#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One stage of Ballast against PyTorch: the same GPT-2 layers, forward, backward and update, by turns.

Needs `torch` in the Python that runs it. PyTorch is eager, scaled_dot_product_attention, fused AdamW, the layers alone
(without embedding and head), with the presets of `ballast-bench stage`. The matmul ceiling is that of `ballast-bench
stage`, in fp32, measured in the run beside: the best of oneDNN's forms at 256x768x256 and 1024x3072x768. What PyTorch's
own torch.mm reaches at these shapes is printed too: where its library of products does not know the CPU it is far below.
Printed are medians over rounds. F and B are counted as `ballast-bench stage` does: products with weights and causal
attention, 2 FLOP per multiply-add.
"""
import os
import re
import statistics
import sys
import time

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

CEILING_SECONDS = 0.05
UNDISTURBED = 0.95  # of the wall time each thread has a processor, as in tools/bench/measure.h
TRIES = 6


def presets(options):
    """As tools/bench/stage.c."""
    large = options.hidden >= 768
    options.layers = options.layers or (12 if large else 8)
    options.seq = options.seq or (1024 if large else 256)
    options.batch = options.batch or (1 if large else 4)


def make_model(torch, options):
    functional = torch.nn.functional

    class Layer(torch.nn.Module):
        def __init__(self, hidden):
            super().__init__()
            self.heads = hidden // 64
            self.norm1, self.norm2 = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
            self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
            self.up, self.down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            batch, seq, hidden = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
            attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attention.transpose(1, 2).reshape(batch, seq, hidden))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    return torch.nn.Sequential(*[Layer(options.hidden) for _ in range(options.layers)])


def work(options):
    """FLOP of F and B, and of each alone."""
    rows, hidden = options.batch * options.seq, options.hidden
    products = 2 * rows * 12 * hidden * hidden * options.layers
    attention = 2 * rows * (options.seq + 1) / 2 * hidden * options.layers
    return 3 * products + (2 + 4) * attention


class PyTorch:
    def __init__(self, options):
        import torch
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        self.torch, self.options = torch, options
        self.dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        self.model = make_model(torch, options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.x = torch.randn(options.batch, options.seq, options.hidden, requires_grad=True)
        self.dy = 1e-3 * torch.randn(options.batch, options.seq, options.hidden)
        self.shapes = [(torch.randn(m, k), torch.randn(k, n)) for m, n, k in ((256, 768, 256), (1024, 3072, 768))]

    def ceiling(self):
        """FLOP/s of the better shape."""
        best = 0
        for a, b in self.shapes:
            self.torch.mm(a, b)
            done, start = 0, time.perf_counter()
            while time.perf_counter() - start < CEILING_SECONDS:
                self.torch.mm(a, b)
                done += 2 * a.shape[0] * a.shape[1] * b.shape[1]
            best = max(best, done / (time.perf_counter() - start))
        return best

    def step(self):
        """Seconds of F and B, and of the update."""
        start = time.perf_counter()
        with self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.options.dtype == "bf16"):
            y = self.model(self.x)
        y.backward(self.dy.to(y.dtype))
        middle = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.x.grad = None
        return middle - start, time.perf_counter() - middle

    def sample(self):
        """After a step that does not count, as in ballast-bench. Taken again while others have the processors."""
        for _ in range(TRIES):
            before = self.ceiling()
            self.step()
            wall, used = time.perf_counter(), time.process_time()
            compute, update = self.step()
            wall, used = time.perf_counter() - wall, time.process_time() - used
            if used >= UNDISTURBED * wall * self.options.threads:
                break
        else:
            tell(f"PyTorch was disturbed {TRIES} times")
        return compute, update, max(before, self.ceiling())


def ballast(options):
    """Seconds of F and B and of the update, the ceiling, and what ran."""
    output = measuring.bench("stage", "--prepack", "--pairs", "1", "--hidden", str(options.hidden), "--layers",
                             str(options.layers), "--seq", str(options.seq), "--micro-batch", str(options.batch), "--dtype",
                             options.dtype, "--threads", str(options.threads), "--processor",
                             str(options.processor if options.threads == 1 else -1))
    seconds = {part: float(value) * 1e-3 for part, value in re.findall(r"^  (F|B|update) +([0-9.]+) ms", output, re.M)}
    ceiling = float(re.search(r"^ceiling ([0-9.]+) GFLOP/s", output, re.M)[1]) * 1e9
    return seconds["F"] + seconds["B"], seconds["update"], ceiling, output.splitlines()[0]


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("--hidden", type=measuring.heads, default=768, metavar="N", help="of the model (default 768)")
    for name, what in (("layers", "of the model"), ("seq", "tokens of a sequence"), ("batch", "sequences")):
        parser.add_argument(f"--{name}", type=measuring.count(0), default=0, metavar="N",
                            help=f"{what} (default 0: a preset for --hidden)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast on PyTorch's side")
    measuring.add_rounds(parser, 7, "--pairs")
    parser.add_argument("--processor", type=measuring.count(0), default=0, metavar="N",
                        help="to run on, with one thread (default 0)")
    parser.add_argument("--threads", type=measuring.count(1), default=1, metavar="N", help="of both (default 1)")
    options = parser.parse_args()
    if options.threads == 1 and options.processor not in os.sched_getaffinity(0):
        parser.error(f"--processor {options.processor}: is none of {sorted(os.sched_getaffinity(0))}")
    presets(options)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.threads == 1:
        os.sched_setaffinity(0, {options.processor})
    try:
        other = PyTorch(options)
    except ImportError as error:
        sys.exit(f"pytorch_compare.py: needs PyTorch in this Python: {error}")
    other.step()  # warm
    theirs, ours = [], []
    for number in range(options.rounds):
        theirs.append(other.sample())
        ours.append(ballast(options))
        tell(f"round {number + 1} of {options.rounds}: F and B {theirs[-1][0] / ours[-1][0]:.2f}x")

    def ratio(part):
        return statistics.median(part(t) / part(o) for t, o in zip(theirs, ours))

    def share(samples):
        return 100 * statistics.median(work(options) / sample[0] / our[2] for sample, our in zip(samples, ours))

    print(f"{ours[0][3]}\nPyTorch {other.torch.__version__}: eager, SDPA, fused AdamW, {options.dtype}")
    print(f"PyTorch over Ballast: F and B {ratio(lambda s: s[0]):.2f}x, with the update {ratio(lambda s: s[0] + s[1]):.2f}x "
          f"({options.rounds} rounds)")
    print(f"share of the fp32 matmul ceiling of {statistics.median(our[2] for our in ours) * 1e-9:.0f} GFLOP/s: PyTorch "
          f"{share(theirs):.1f} %, Ballast {share(ours):.1f} %; torch.mm alone reaches "
          f"{100 * statistics.median(their[2] / our[2] for their, our in zip(theirs, ours)):.1f} % of it")


main()
