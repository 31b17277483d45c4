#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tensor-parallel part of a stage of a large model on a GPU against PyTorch, in one run, by turns.

Needs `torch` in the Python that runs it. PyTorch has the same shapes as `ballast-bench stage --model`: layers alone,
scaled_dot_product_attention, compiled. It keeps what Ballast keeps, as mixed precision is done in the field: bf16 weights,
fp32 masters of them, and fp32 gradients that bf16 ones are added to after each backward, which is part of F and B; the update
is fused AdamW of the masters, copied to the bf16 weights, and clears the gradients. `--bf16-only`: bf16 weights, gradients and
moments alone, which is less to move and to keep than ours, and loses small gradients and updates. Seconds of F and B, and of
the update, by events of the GPU, medians over samples; the ratio is the median over rounds. `--device cpu` with `--hidden` tries
it out. Ends with 77 and the reason where there is no PyTorch or GPU, with 1 where PyTorch is faster and `--faster` is given.
"""
import json
import os
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

MODELS = {"gpt3-96b": ("gpt2", 9984, 104, 39936), "gpt3-175b": ("gpt2", 12288, 96, 49152),
          "llama-65b": ("llama", 8192, 64, 22016)}


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def shape_of(options):
    """As find_model of tools/bench/shard.c: family, hidden, heads, head size and ffn of one part."""
    family, hidden, heads, ffn = MODELS[options.model]
    size = hidden // heads
    if options.hidden > 0:
        ffn = ffn * options.hidden // hidden
        heads = options.hidden // size
        hidden = heads * size
    return family, hidden, heads // options.shard, size, ffn // options.shard


def make_model(torch, options):
    functional, nn = torch.nn.functional, torch.nn
    family, hidden, heads, size, ffn = shape_of(options)
    llama = family == "llama"
    positions = torch.arange(options.seq)[:, None] * (10000.0 ** (-torch.arange(0, size, 2) / size))[None, :]
    cosine, sine = (torch.cat([f(positions)] * 2, dim=-1).to(options.device, torch.bfloat16)
                    for f in (torch.cos, torch.sin))

    def turn(x):
        half = x.shape[-1] // 2
        return x * cosine + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sine

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.RMSNorm if llama else nn.LayerNorm
            self.norm1, self.norm2 = norm(hidden, eps=1e-5), norm(hidden, eps=1e-5)
            self.qkv = nn.Linear(hidden, 3 * heads * size, bias=not llama)
            self.out = nn.Linear(heads * size, hidden, bias=not llama)
            self.up = nn.Linear(hidden, 2 * ffn if llama else ffn, bias=not llama)
            self.down = nn.Linear(ffn, hidden, bias=not llama)

        def forward(self, x):
            batch, seq, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, heads, size).permute(2, 0, 3, 1, 4)
            if llama:
                q, k = turn(q), turn(k)
            att = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(att.transpose(1, 2).reshape(batch, seq, heads * size))
            pre = self.up(self.norm2(x))
            if llama:
                gate, up = pre.chunk(2, dim=-1)
                return x + self.down(functional.silu(gate) * up)
            return x + self.down(functional.gelu(pre, approximate="tanh"))

    model = nn.Sequential(*[Layer() for _ in range(options.layers)]).to(options.device, torch.bfloat16)
    return hidden, torch.compile(model) if options.compile else model


class PyTorch:
    def __init__(self, torch, options):
        torch.manual_seed(1)
        self.torch, self.options = torch, options
        hidden, self.model = make_model(torch, options)
        shape = (options.batch, options.seq, hidden)
        self.x = torch.randn(shape, device=options.device, dtype=torch.bfloat16, requires_grad=True)
        self.weights = list(self.model.parameters())
        self.masters = self.weights
        if not options.bf16_only:
            self.masters = [weight.detach().float() for weight in self.weights]
            for master in self.masters:
                master.grad = torch.zeros_like(master)
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-9, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.dy = 1e-3 * torch.randn(shape, device=options.device, dtype=torch.bfloat16)

    def add_gradients(self):
        """Those of one backward, in bf16, to the fp32 ones; the next backward writes its own anew."""
        self.torch._foreach_add_([master.grad for master in self.masters], [weight.grad for weight in self.weights])
        for weight in self.weights:
            weight.grad = None

    def step(self):
        """Seconds of F and B, and of the update."""
        cuda = self.torch.cuda if self.options.device == "cuda" else None
        marks = [cuda.Event(enable_timing=True) for _ in range(3)] if cuda else None
        start = time.perf_counter()
        if cuda:
            marks[0].record()
        self.model(self.x).backward(self.dy)  # gradients are added up, as between the micro-batches of a step
        if not self.options.bf16_only:
            self.add_gradients()
        if cuda:
            marks[1].record()
        middle = time.perf_counter()
        self.optimizer.step()
        if not self.options.bf16_only:
            with self.torch.no_grad():
                self.torch._foreach_copy_(self.weights, self.masters)
        self.optimizer.zero_grad(set_to_none=False)
        if cuda:
            marks[2].record()
            cuda.synchronize()
            return 1e-3 * marks[0].elapsed_time(marks[1]), 1e-3 * marks[1].elapsed_time(marks[2])
        return middle - start, time.perf_counter() - middle

    def sample(self):
        return [statistics.median(part) for part in zip(*(self.step() for _ in range(self.options.samples)))]


def ballast(options):
    """Seconds of F and B, of the update, of the products alone, and what ran."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "stage")
        measuring.bench("stage", "--model", options.model, "--device", "cuda" if options.device == "cuda" else "host",
                        "--shard", str(options.shard), "--layers", str(options.layers), "--seq", str(options.seq),
                        "--micro-batches", str(options.batch), "--samples", str(options.samples), "--hidden",
                        str(options.hidden), "--write", prefix)
        with open(f"{prefix}.jsonl") as file:
            line = json.loads(file.readline())
    return line["forward"] + line["input"] + line["weight"], line["update"], line["products"], line["device"]


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-65b", help="(default llama-65b)")
    for name, least, preset, what in (("shard", 1, 4, "devices that a layer is spread over"), ("layers", 1, 2, "of the part"),
                                      ("seq", 1, 2048, "tokens of a sequence"), ("batch", 1, 1, "sequences"),
                                      ("hidden", 0, 0, "another width; 0: the model's"), ("samples", 1, 11, "of a round")):
        parser.add_argument(f"--{name}", type=measuring.count(least), default=preset, metavar="N",
                            help=f"{what} (default {preset})")
    measuring.add_rounds(parser, 3, "--pairs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default cuda)")
    parser.add_argument("--eager", dest="compile", action="store_false", help="PyTorch not compiled")
    parser.add_argument("--bf16-only", action="store_true", help="PyTorch without fp32 masters and gradients")
    parser.add_argument("--faster", action="store_true", help="fail where PyTorch is faster")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        skip(f"needs PyTorch in this Python: {error}")
    if options.device == "cuda" and not torch.cuda.is_available():
        skip("PyTorch sees no GPU; --device cpu --hidden N tries it out")
    other = PyTorch(torch, options)
    for _ in range(3):  # compiles and warms up
        other.step()
    pairs = []
    for number in range(options.rounds):
        pairs.append((other.sample(), ballast(options)))
        tell(f"round {number + 1} of {options.rounds}")
    print(f"{options.model}, part 1 of {options.shard}, {options.layers} layers, seq {options.seq}, b {options.batch}, "
          f"{pairs[0][1][3]}\nPyTorch {torch.__version__}: {'compiled' if options.compile else 'eager'}, SDPA, "
          f"{'bf16 alone' if options.bf16_only else 'bf16, fp32 masters and gradients'}, fused AdamW")
    ratio = 0
    for what, seconds in (("F and B", lambda parts: parts[0]), ("update", lambda parts: parts[1]),
                          ("F, B and update", lambda parts: parts[0] + parts[1])):
        theirs, ours = (statistics.median(seconds(pair[side]) for pair in pairs) for side in (0, 1))
        ratio = statistics.median(seconds(t) / seconds(o) for t, o in pairs)
        print(f"{what}: PyTorch {1e3 * theirs:.3f} ms, Ballast {1e3 * ours:.3f} ms, PyTorch over Ballast {ratio:.3f}x "
              f"({options.rounds} rounds)")
    print(f"Ballast's products alone are {100 * statistics.median(o[2] / o[0] for _, o in pairs):.1f} % of its F and B")
    if options.faster and ratio <= 1:
        sys.exit("below what is promised: faster than PyTorch")


main()
