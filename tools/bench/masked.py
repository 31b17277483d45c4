#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of a step with a large vocabulary if only some tokens have a loss, over that of all tokens, on one stage.

Both train on the same tokens by turns. With `data.loss: masked` the head leaves out rows without a loss; layers do not.
The mask has questions and answers of random lengths, as conversations have them.
"""
import random
import statistics
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

ROUND = 200  # tokens of a question and its answer, on average


def write_mask(path, tokens, share):
    choice, mask = random.Random(1), bytearray()
    while len(mask) < tokens:
        for value, mean in ((0, ROUND * (1 - share)), (1, ROUND * share)):
            mask += bytes([value]) * choice.randint(1, max(1, round(2 * mean) - 1))
    with open(path, "wb") as file:
        file.write(mask[:tokens])
    return sum(mask[:tokens]) / tokens


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--hidden", type=measuring.heads, default=512, metavar="N", help="of the model (default 512)")
    flags.add_argument("--layers", type=measuring.count(1), default=6, metavar="N", help="(default 6)")
    flags.add_argument("--vocab", type=measuring.count(256), default=50257, metavar="N", help="(default 50257)")
    flags.add_argument("--share", type=measuring.above_zero, default=0.4, metavar="X", help="of tokens with a loss (default 0.4)")
    measuring.add_rounds(flags, 7)
    options = flags.parse_args()
    if options.share >= 1:
        flags.error("--share: must be below 1")
    with measuring.Runs() as runs:
        with open(runs.text, "rb") as file:
            share = write_mask(runs.text + ".mask", len(file.read()), options.share)
        job = runs.job(model={"layers": options.layers, "hidden": options.hidden, "vocab": options.vocab, "seq": 256},
                       train={"steps": 4, "micro_batch": 2, "micro_batches": 4}, pipeline={"stages": 1})
        ratios = []
        for number in range(options.rounds):
            every, some = (measuring.median_seconds(runs.steps(job, [f"data.loss={loss}"])[1:]) for loss in ("all", "masked"))
            ratios.append(some / every)
            tell(f"round {number + 1} of {options.rounds}: {some:.3f} s over {every:.3f} s, {ratios[-1]:.3f}")
    print(f"{options.layers} layers of {options.hidden}, vocabulary {options.vocab:,}, {100 * share:.0f} % of tokens with a loss: "
          f"{statistics.median(ratios):.3f} of the time ({measuring.spread(ratios)}, {len(ratios)} rounds)")


main()
