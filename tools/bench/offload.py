#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What parking in memory of the host costs where devices have few slots: the same job with unlimited slots, with offload in
a few, and with full recomputation in as many, by turns.

1f1b on four and on eight stages with two slots a device, and interleaved on four stages of two chunks with three; twice as
many micro-batches as stages. In each round every variant runs once, and the median of its steps, the first two left out,
counts; printed are the medians over rounds of the quotients within a round. Losses of all variants must be equal to the
bit, and nothing may be made again under offload.

Asked for: a step of offload takes at most 1.05 of one with unlimited slots, and is at least 1.15 times as fast as one of
recomputation. Whether that is met is printed; ends with 1 only where losses differ or blocks were made again, because what
else goes on on the machine moves times.
"""
import statistics
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

WARM = 2  # steps of a run that do not count
MOST, LEAST = 1.05, 1.15  # asked for: of the step of unlimited slots, and times as fast as recomputation
SHAPES = {"1f1b-4": (4, 1, "1f1b", 2), "1f1b-8": (8, 1, "1f1b", 2), "interleaved-4": (4, 2, "interleaved", 3)}


def seconds(events):
    return measuring.median_seconds(events[WARM:])


def check_kept(events):
    for event in events:
        for stage in event["stages"]:
            if stage["recomputed"] or stage["loaded"] != stage["evicted"]:
                sys.exit(f"offload: step {event['step']}: blocks were made again: {stage}")


def told(met):
    return "met" if met else "MISSED"


def measure(runs, name, options):
    stages, chunks, schedule, slots = SHAPES[name]
    slots = options.slots or slots
    job = runs.job(model={"layers": stages * chunks * options.layers, "hidden": options.hidden, "seq": options.seq},
                   train={"steps": options.steps, "micro_batch": 1, "micro_batches": 2 * stages},
                   pipeline={"stages": stages, "schedule": schedule})
    variants = {"unlimited": [], "recompute": ["pipeline.recompute=full", f"memory.slots={slots}"],
                "offload": ["balance.policy=offload", f"memory.slots={slots}", f"balance.host={options.host}",
                            f"balance.mode={options.mode}"]}
    quotients = {}
    for number in range(options.rounds):
        turns = list(variants.items())[::-1 if number % 2 == 1 else 1]
        found = {variant: runs.steps(job, sets) for variant, sets in turns}
        measuring.check_equal({variant: measuring.losses(events) for variant, events in found.items()}, "offload")
        check_kept(found["offload"])
        took = {variant: seconds(events) for variant, events in found.items()}
        for variant in ("offload", "recompute"):
            quotients.setdefault(variant, []).append(took[variant] / took["unlimited"])
        tell(f"{name}, round {number + 1} of {options.rounds}: unlimited {took['unlimited']:.3f} s, "
             f"offload {quotients['offload'][-1]:.3f}x, recompute {quotients['recompute'][-1]:.3f}x")
    faster = [slow / fast for slow, fast in zip(quotients["recompute"], quotients["offload"])]
    peak = max(stage["peak_slots"] for event in found["offload"] for stage in event["stages"])
    print(f"{name}, {slots} slots ({peak} used), {options.layers} layers a chunk, hidden {options.hidden}, seq {options.seq}, m {2 * stages}, "
          f"{options.rounds} rounds, step of unlimited slots {took['unlimited']:.3f} s, equal losses")
    for variant, values in quotients.items():
        print(f"  {variant:10} {statistics.median(values):.3f}x the step of unlimited slots ({measuring.spread(values)})")
    print(f"  offload {statistics.median(faster):.3f} times as fast as recompute ({measuring.spread(faster)})")
    cost, gain = statistics.median(quotients["offload"]), statistics.median(faster)
    print(f"  {told(cost <= MOST)}: at most {MOST:.2f}x the step of unlimited slots are asked for, offload takes {cost:.3f}x")
    print(f"  {told(gain >= LEAST)}: at least {LEAST:.2f} times as fast as recompute is asked for, offload is {gain:.3f}")


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--only", choices=SHAPES, help="one of the three shapes (all)")
    flags.add_argument("--hidden", type=measuring.heads, default=768, metavar="N", help="of the model (default 768)")
    flags.add_argument("--layers", type=measuring.count(1), default=2, metavar="N", help="of a chunk (default 2)")
    flags.add_argument("--seq", type=measuring.count(8), default=256, metavar="N",
                       help="tokens of a sequence (default 256)")
    flags.add_argument("--slots", type=measuring.count(1), metavar="N", help="of a device (by the shape)")
    flags.add_argument("--mode", choices=("overlap", "fewest"), default="overlap", help="of balancing (overlap)")
    flags.add_argument("--host", default="4GiB", metavar="BYTES", help="that the host lends (4GiB)")
    flags.add_argument("--steps", type=measuring.count(WARM + 1), default=6, metavar="N",
                       help=f"of a run, the first {WARM} of which do not count (default 6)")
    measuring.add_rounds(flags, 7)
    options = flags.parse_args()
    with measuring.Runs() as runs:
        for name in SHAPES if options.only is None else (options.only,):
            measure(runs, name, options)


if __name__ == "__main__":
    main()
