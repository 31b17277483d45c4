#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far the policy auto is from the best of its alternatives: none, bpipe and full recomputation, in six settings.

fast       six stages, one slot fewer than the schedule needs, the path as it is
throttled  the same with a path on which a block takes two F
tight      the smallest budget that can be balanced
loose      as many slots as the schedule needs
small      as fast, with a quarter of the tokens in a block
host       two slots and memory of the host over a link that all blocks together keep busy for longer than a step takes;
           the alternatives are offload, bpipe with what devices have no room for at the host, drop and full
           recomputation

In each round every alternative that fits the budget runs once in every setting, in an order that turns from round to round;
the median of its last steps counts (before them auto has decided). The best is the alternative whose median over
rounds is the least (the least of each round would be a different one by chance each time, and auto could not reach it even if
it did the same), and printed is the median over rounds of every quotient to it, with the spread of auto's, and what auto
chose in each round. "quick steps" is the quotient of the lower quartiles of all steps that count, which what else goes on
on the machine hardly touches: where it is far from the median's, measure again. Losses must be equal to the bit. Full recomputation is another job; a run under auto makes blocks again
one by one (the policy drop), within the same slots.

Ends with 1 where auto is more than 2 % slower than the best: on a machine that does other work, look at the spread first.
"""
import re
import statistics
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

STAGES = 6
MICRO_BATCHES = 12
SLOTS = STAGES - 1
TIGHT = (STAGES + 3) // 2
AT_HOST = 2  # slots where the host takes the rest
BOUND = 0.02
SETTINGS = ["fast", "throttled", "tight", "loose", "small", "host"]
RIVALS = ("none", "bpipe", "recompute", "offload")  # of auto; and drop, where the host is
SETTLE = 10  # steps of every run that do not count: auto parks one block, looks at three, changes, and looks at three again
ALSO = {"cap": ["balance.policy=cap", f"balance.cap={SLOTS}"], "drop": ["balance.policy=drop"],
        "fewest": ["balance.policy=bpipe", f"balance.cap={SLOTS}", "balance.mode=fewest"]}


class Setting:
    def __init__(self, name, sets, also, limited=True):
        self.name, self.sets = name, sets
        self.alternatives = {"auto": ["balance.policy=auto"], "bpipe": ["balance.policy=bpipe", f"balance.cap={SLOTS}"],
                             "recompute": ["pipeline.recompute=full"]}
        if not limited:
            self.alternatives["none"] = []
        if name == "host":
            self.alternatives.update(bpipe=["balance.policy=bpipe", f"balance.cap={AT_HOST}"],
                                     offload=["balance.policy=offload"], drop=ALSO["drop"])
        self.alternatives.update({other: ALSO[other] for other in also})
        self.taken = {alternative: [] for alternative in self.alternatives}  # medians of runs
        self.steps = {alternative: [] for alternative in self.alternatives}
        self.chosen = []

    def run(self, runs, job, options, number):
        found = {}
        for name in sorted(self.alternatives, reverse=number % 2 == 1):
            auto = name == "auto"
            events, said = runs.run(job, [*self.sets, *self.alternatives[name]], ["--verbose"] if auto else [])
            events = [event for event in events if event["event"] == "step"]
            counted = events[-options.steps:]
            found[name] = measuring.losses(events)
            self.taken[name].append(measuring.median_seconds(counted))
            self.steps[name] += [event["seconds"] for event in counted]
            if auto:
                self.note_choice(counted, said)
        measuring.check_equal(found, self.name)
        tell(f"round {number + 1}, {self.name}: " +
             ", ".join(f"{name} {1e3 * values[-1]:.0f} ms" for name, values in self.taken.items()) +
             f"; auto chose {self.chosen[-1]}")

    def note_choice(self, counted, said):
        if counted[0]["policy_version"] != counted[-1]["policy_version"]:
            tell(f"{self.name}: auto changed its mind within the steps that count")
        stages = counted[-1]["stages"]
        parked, again = (sum(stage[key] for stage in stages) for key in ("evicted", "recomputed"))
        decisions = re.findall(r"auto: after step \d+, of [^:]*: (.*?)\. Predicted", said)
        what = decisions[-1] if decisions else "none"
        self.chosen.append(f"{what} ({parked} parked, {again} again)" if parked + again > 0 else what)

    def best(self):
        return min((name for name in self.taken if name in RIVALS or (name == "drop" and self.name == "host")),
                   key=lambda name: statistics.median(self.taken[name]))

    def report(self):
        best = self.best()
        quotients = {name: [own / other for own, other in zip(values, self.taken[best])]
                     for name, values in self.taken.items()}
        middle = {name: statistics.median(values) for name, values in quotients.items()}
        good = middle["auto"] <= 1 + BOUND
        quick = {name: sorted(values)[len(values) // 4] for name, values in self.steps.items()}
        others = ", ".join(f"{name} {value:.3f}" for name, value in middle.items() if name not in ("auto", best))
        print(f"{self.name:10} auto {middle['auto']:.3f} of {best} ({measuring.spread(quotients['auto'])}; quick steps "
              f"{quick['auto'] / quick[best]:.3f}), {others}   " + measuring.verdict(good, f"within {100 * BOUND:.0f} %"))
        for what in dict.fromkeys(self.chosen):
            print(f"{'':10} chose {what}: {self.chosen.count(what)} of {len(self.chosen)} rounds")
        return good


def rate_of_forwards(runs, job, forwards):
    """Bytes per second at which a block of the first stage takes so many F, F being a third of what it computes."""
    events = runs.steps(job, ["train.steps=6"])
    stage = events[-1]["stages"][0]
    forward = statistics.median(event["stages"][0]["busy_seconds"] for event in events[2:]) / MICRO_BATCHES / 3
    return int(stage["peak_slot_bytes"] / stage["peak_slots"] / (forwards * forward))


def sets_of(name, runs, job, options):
    if name == "throttled":
        return [f"memory.slots={SLOTS}", f"balance.rate={rate_of_forwards(runs, job, 2)}"]
    if name == "host":
        return [f"memory.slots={AT_HOST}", "balance.host=4GiB", f"balance.rate={rate_of_forwards(runs, job, 1.5)}"]
    return {"fast": [f"memory.slots={SLOTS}"], "tight": [f"memory.slots={TIGHT}"], "loose": [f"memory.slots={STAGES}"],
            "small": [f"memory.slots={SLOTS}", f"model.seq={options.seq // 4}"]}[name]


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--hidden", type=measuring.heads, default=512, metavar="N", help="of the model (default 512)")
    flags.add_argument("--seq", type=measuring.count(16), default=128, metavar="N",
                       help="tokens of a sequence (default 128)")
    flags.add_argument("--steps", type=measuring.count(3), default=25, metavar="N",
                       help=f"steps of a run that count, after {SETTLE} others (default 25: of 5, medians are 3 % apart by chance)")
    measuring.add_rounds(flags, 4)
    measuring.add_limit(flags, 25)
    flags.add_argument("--only", type=measuring.names_of(SETTINGS), default=SETTINGS, metavar="NAME,...",
                       help=f"settings (default {','.join(SETTINGS)})")
    flags.add_argument("--also", type=measuring.names_of(list(ALSO)), default=[], metavar="NAME,...",
                       help=f"more alternatives, for comparison only: {', '.join(ALSO)}")
    options = flags.parse_args()
    with measuring.Runs() as runs:
        job = runs.job(model={"layers": STAGES, "hidden": options.hidden, "seq": options.seq},
                       train={"steps": SETTLE + options.steps, "micro_batch": 1, "micro_batches": MICRO_BATCHES}, pipeline={"stages": STAGES})
        settings = [Setting(name, sets_of(name, runs, job, options), options.also, name != "loose")
                    for name in options.only]
        for number in measuring.rounds_within(options):
            for setting in settings:
                setting.run(runs, job, options, number)
        print(f"{STAGES} stages, hidden {options.hidden}, seq {options.seq}, {len(settings[0].chosen)} rounds, steps over "
              "those of the best, equal losses")
        good = [setting.report() for setting in settings]
    sys.exit(0 if all(good) else 1)


main()
