#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What balancing costs and what it saves: the same job with unlimited slots, with bpipe, and with full recomputation at
bpipe's budget, by turns.

Four stages of one thread: the smallest pipeline in which bpipe moves anything (its cap is ceil((p + 2) / 2)). In each
round every variant runs once, and the median of its steps, the first two left out, counts; printed are the medians over
rounds of the quotients within a round. With --throttle the variants are unlimited slots, bpipe, and bpipe on the slowed
path; stalls are what the stages that evict waited for longer than without the limit, as a share of the step. F is taken as
a third of what a stage computes per micro-batch. Losses of all variants must be equal to the bit.
"""
import statistics
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

STAGES = 4
CAP = (STAGES + 3) // 2
WARM = 2  # steps of a run that do not count


def seconds(events):
    return measuring.median_seconds(events[WARM:])


def stall_share(events):
    """Of the first stage, which evicts most."""
    return statistics.median(event["stages"][0]["stall_seconds"] / event["seconds"] for event in events[WARM:])


def half_an_f(events, micro_batches):
    """Bytes per second at which a block of the first stage takes half an F."""
    stage = events[-1]["stages"][0]
    block_bytes = stage["peak_slot_bytes"] / stage["peak_slots"]
    f_seconds = statistics.median(e["stages"][0]["busy_seconds"] for e in events[WARM:]) / micro_batches / 3
    return int(block_bytes / (f_seconds / 2))


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--hidden", type=measuring.heads, default=768, metavar="N", help="of the model (default 768)")
    flags.add_argument("--layers", type=measuring.count(STAGES), default=4, metavar="N", help="of the model (default 4)")
    flags.add_argument("--seq", type=measuring.count(8), default=256, metavar="N",
                       help="tokens of a sequence (default 256)")
    flags.add_argument("--micro-batches", type=measuring.count(STAGES), default=16, metavar="N",
                       help="of a step (default 16)")
    flags.add_argument("--steps", type=measuring.count(WARM + 1), default=6, metavar="N",
                       help=f"of a run, the first {WARM} of which do not count (default 6)")
    measuring.add_rounds(flags, 10)
    flags.add_argument("--throttle", action="store_true", help="slow the path down so that a block takes half an F")
    options = flags.parse_args()
    bpipe = ["balance.policy=bpipe", f"memory.slots={CAP}"]
    variants = {"unlimited": [], "bpipe": bpipe}
    quotients, stalls = {}, []
    with measuring.Runs() as runs:
        job = runs.job(model={"layers": options.layers, "hidden": options.hidden, "seq": options.seq},
                       train={"steps": options.steps, "micro_batch": 1, "micro_batches": options.micro_batches},
                       pipeline={"stages": STAGES})
        if options.throttle:
            rate = half_an_f(runs.steps(job, bpipe), options.micro_batches)
            variants["slowed"] = bpipe + [f"balance.rate={rate}"]
        else:
            variants["recompute"] = ["pipeline.recompute=full", f"memory.slots={CAP}"]
        for number in range(options.rounds):
            turns = list(variants.items())[::-1 if number % 2 == 1 else 1]
            found = {name: runs.steps(job, sets) for name, sets in turns}
            measuring.check_equal({name: measuring.losses(events) for name, events in found.items()}, "balance")
            for name in variants:
                quotients.setdefault(name, []).append(seconds(found[name]) / seconds(found["unlimited"]))
            stalls.append(stall_share(found[list(variants)[-1]]) - stall_share(found["bpipe"]))
            last = seconds(found["unlimited"])
            tell(f"round {number + 1} of {options.rounds}: unlimited {last:.3f} s, " +
                 ", ".join(f"{name} {values[-1]:.3f}x" for name, values in quotients.items() if name != "unlimited"))
    print(f"{STAGES} stages, hidden {options.hidden}, {options.layers} layers, seq {options.seq}, "
          f"m {options.micro_batches}, {options.rounds} rounds, step of unlimited slots {last:.3f} s, equal losses")
    for name, values in quotients.items():
        print(f"  {name:10} {statistics.median(values):.3f}x the step of unlimited slots ({measuring.spread(values)})")
    if options.throttle:
        print(f"  path {rate / 1e6:.0f} MB/s: further stalls of stage 0 {100 * statistics.median(stalls):.2f} % of the step")
    else:
        gain = [a / b for a, b in zip(quotients["recompute"], quotients["bpipe"])]
        print(f"  tokens/s of bpipe over full recomputation {statistics.median(gain):.3f}x ({measuring.spread(gain)})")


main()
