#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of what 1F1B's own bubble allows two one-thread stages on two cores reach, whole services included.

Runs `ballastctl run --local` and reads its report. A stage's busy seconds are its operations alone, so for m
micro-batches the fastest step that 1F1B on two stages can make is

    bound = max(busy_0 + busy_1 / m, busy_1 + busy_0 / m)

(the other stage's F before the first operation and B after the last one). Printed is bound / measured, the median over
steps, the first two left out; `seconds` is from the start of a step to its commit, optimizer and protocol included.

--ahead compares the same runs with train.post_validation (docs/post-validation.md) and without, in turns, for schedules
whose stages end together and such whose stages do not; the model's head is its own, so that the ends of the pipeline do
not wait for each other. Printed is the median over rounds of the quotient of the mean steps, the first two left out. It has
a smaller model of its own, whose update and rounds with the driver are more of a step.
"""
import statistics
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

WARM = 2
PRESETS = {"steps": (10, 14), "hidden": (768, 512), "layers": (8, 4), "seq": (256, 128), "micro_batches": (16, 4),
           "rounds": (3, 5)}  # without and with --ahead
AHEAD = ["1f1b", "zb-h1", "zb-h2", "zb-v"]


def write_job(options, runs):
    return runs.job(model={"layers": options.layers, "hidden": options.hidden, "seq": options.seq},
                    train={"steps": options.steps, "micro_batch": options.micro_batch,
                           "micro_batches": options.micro_batches},
                    pipeline={"stages": options.stages, "attention": "flash"}, balance={"data_path": options.path})


def compare_ahead(options, runs):
    job = write_job(options, runs)
    quotients = {schedule: [] for schedule in AHEAD}
    for number in measuring.rounds_within(options):
        for schedule, values in quotients.items():
            means, losses = {}, {}
            for ahead in ("false", "true") if number % 2 == 0 else ("true", "false"):
                steps = runs.steps(job, [f"pipeline.schedule={schedule}", "model.tied=false",
                                         f"train.post_validation={ahead}"])
                means[ahead] = statistics.mean(event["seconds"] for event in steps[WARM:])
                losses[ahead] = measuring.losses(steps)
            measuring.check_equal(losses, schedule)
            values.append(means["true"] / means["false"])
            tell(f"round {number + 1}, {schedule}: waits {1e3 * means['false']:.1f} ms, ahead {1e3 * means['true']:.1f} ms, "
                 f"{values[-1]:.3f}")
    print(f"{options.stages} stages, hidden {options.hidden}, {options.layers} layers, seq {options.seq}, "
          f"m {options.micro_batches}, {len(quotients['1f1b'])} rounds, equal losses: a step ahead of its commit, of one "
          "that waits")
    for schedule, values in quotients.items():
        print(f"  {schedule:6} {statistics.median(values):.3f} ({measuring.spread(values)})")


def compare_bound(options, runs):
    m = options.micro_batches
    job = write_job(options, runs)
    shares, seconds = [], []
    for number in measuring.rounds_within(options):
        for event in runs.steps(job)[WARM:]:
            busy = [stage["busy_seconds"] for stage in event["stages"]]
            bound = max(busy[0] + busy[1] / m, busy[1] + busy[0] / m)
            shares.append(bound / event["seconds"])
            seconds.append(event["seconds"])
        tell(f"round {number + 1}: step {seconds[-1]:.3f} s, {100 * shares[-1]:.1f} % of the bound")
    print(f"two stages, hidden {options.hidden}, {options.layers} layers, m {m}, {options.path}: "
          f"step {statistics.median(seconds):.3f} s, {100 * statistics.median(shares):.1f} % of 1F1B's bound "
          f"(best {100 * max(shares):.1f} %, worst {100 * min(shares):.1f} %, {len(shares)} steps)")


def read_flags():
    flags = measuring.parser(__doc__)
    said = {name: f"default {plain}, with --ahead {ahead}" for name, (plain, ahead) in PRESETS.items()}
    flags.add_argument("--steps", type=measuring.count(WARM + 1), metavar="N",
                       help=f"of a run, the first {WARM} of which do not count ({said['steps']})")
    flags.add_argument("--hidden", type=measuring.heads, metavar="N", help=f"of the model ({said['hidden']})")
    flags.add_argument("--layers", type=measuring.count(2), metavar="N", help=f"of the model ({said['layers']})")
    flags.add_argument("--seq", type=measuring.count(8), metavar="N", help=f"tokens of a sequence ({said['seq']})")
    flags.add_argument("--micro-batch", type=measuring.count(1), default=1, metavar="N", help="sequences (default 1)")
    flags.add_argument("--micro-batches", type=measuring.count(2), metavar="N",
                       help=f"of a step ({said['micro_batches']})")
    flags.add_argument("--path", choices=["shm", "tcp"], default="shm", help="between stages (default shm)")
    flags.add_argument("--rounds", "--repeat", type=measuring.count(1), metavar="N",
                       help=f"how often everything is run, by turns ({said['rounds']})")
    measuring.add_limit(flags, 5)
    flags.add_argument("--stages", type=measuring.count(2), metavar="P", help="with --ahead (default 2)")
    flags.add_argument("--ahead", action="store_true", help="compare steps ahead of their commit with such that wait")
    options = flags.parse_args()
    if options.stages is not None and not options.ahead:
        flags.error("--stages: goes with --ahead, the bound is that of two stages")
    options.stages = options.stages or 2
    for name, presets in PRESETS.items():
        if getattr(options, name) is None:
            setattr(options, name, presets[options.ahead])
    if options.layers < options.stages * (2 if options.ahead else 1):
        flags.error(f"--layers {options.layers}: are too few for {options.stages} stages" +
                    (", which have two chunks with zb-v" if options.ahead else ""))
    return options


def main():
    options = read_flags()
    with measuring.Runs() as runs:
        (compare_ahead if options.ahead else compare_bound)(options, runs)


main()
