#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near predicted step times come to measured ones on this machine.

replay    one recorded step with its own durations, simulated, on two stages and on four that share two cores: within 2 %
two       p = 2: a profile of a 1f1b run predicts other schedules and numbers of micro-batches: within 5 %
four      p = 4 from a profile of p = 4 1f1b, the stages sharing two cores: within 10 %
replicas  two replicas of one stage from a profile of p = 2, of two stages that share two cores from one of p = 4: within 10 %
host      1f1b on four stages that park at the host over slowed links, from a profile of a run that parks nothing and from the
          run's own: the step and what stages wait for, load, slot and activation each, within 5 %. Operations that take longer than in the
          profile, as while another process computes, shorten waits for slots by as much: their error is in the row
estimate  what the estimator says of micro-batch 1 -> 2 from two profiles, beside the measured gain: within 5 %

In each round every row takes one pair of (profile, measured run), one after the other so that both see the same machine; a
step's time is the median of a run's steps but the first. A row is the median over rounds of its errors. Peak slots and block
bytes must be equal, of every stage of every run. Ends with 1 when a row is outside its bound: on a machine that does other
work, look at the spread before believing it.
"""
import json
import os
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

QUESTIONS = ["replay", "two", "four", "replicas", "host", "estimate"]
CORES = 2  # that four stages share
TWO = {"1f1b": {}, "1f1b, m 16": {"micro_batches": 16}, "gpipe": {"schedule": "gpipe"},
       "interleaved": {"schedule": "interleaved"}, "zb-h1": {"schedule": "zb-h1"},
       "1f1b, full recomputation": {"recompute": "full"}}
FOUR = {"1f1b": {}, "1f1b, m 16": {"micro_batches": 16}, "gpipe": {"schedule": "gpipe"}, "zb-h1": {"schedule": "zb-h1"}}


class Bench:
    def __init__(self, options, runs):
        self.options, self.runs = options, runs
        self.rows = {}   # what: [bound, pairs of predicted and measured]
        self.busy = {}   # what: predicted over measured seconds of operations
        self.checked = 0

    def job(self, stages, schedule="1f1b", micro_batch=2, micro_batches=8, recompute="none", data=1):
        pipeline = {"stages": stages, "schedule": schedule, "recompute": recompute}
        if stages * data > CORES:
            pipeline["cores"] = CORES
        return self.runs.job(model={key: getattr(self.options, key) for key in ("layers", "hidden", "seq")},
                             train={"steps": self.options.steps, "micro_batch": micro_batch,
                                    "micro_batches": micro_batches}, pipeline=pipeline, parallel={"data": data})

    def run(self, job, *flags):
        line = self.runs.run(job, flags=flags)[0][-1]
        for stage in line["stages"]:
            for key in ("peak_slots", "slot_bytes"):
                self.checked += 1
                if stage[key]["predicted"] != stage[key]["measured"]:
                    sys.exit(f"stage {stage['stage']}: {key} {stage[key]}: these must be equal")
        return line

    def profile(self, stages, name="profile.json", **shape):
        path = self.runs.path(name)
        return path, self.run(self.job(stages, **shape), "--profile", path)

    def add(self, bound, what, predicted, measured):
        self.rows.setdefault(what, [bound, []])[1].append((predicted, measured))
        tell(f"{what}: predicted {predicted:.4f}, measured {measured:.4f}, {100 * (predicted / measured - 1):+.1f} %")

    # ---- one round of each question

    def replay(self, _):
        for stages in (2, 4):
            line = self.profile(stages)[1]["replay_seconds"]
            self.add(0.02, f"replay of a recorded step, p = {stages}", line["predicted"], line["measured"])

    def predict(self, stages, bound, shapes, recorded=None):
        """`recorded`: stages of the profile, where they are others."""
        for name, shape in shapes.items():
            profile, _ = self.profile(recorded or stages)
            line = self.run(self.job(stages, **shape), "--predict", profile)
            what = f"p = {stages}, {name}"
            sums = [sum(stage["busy_seconds"][key] for stage in line["stages"]) for key in ("predicted", "measured")]
            self.busy.setdefault(what, []).append(sums[0] / sums[1])
            self.add(bound, what, line["seconds"]["predicted"], line["seconds"]["measured"])

    def two(self, _):
        self.predict(2, 0.05, TWO)

    def four(self, _):
        self.predict(4, 0.10, FOUR)

    def replicas(self, _):
        for stages in (1, 2):
            self.predict(stages, 0.10, {"d = 2": {"data": 2}, "d = 2, m 16": {"data": 2, "micro_batches": 16}},
                         recorded=2 * stages)

    def host(self, _):
        """On three links: one that is busy for as long as a step would take without it, one half and one a quarter as fast."""
        profile, plain = self.profile(4)
        copies = 4 * 8  # of two stages, out and back, of every micro-batch
        bytes_each = max(stage["slot_bytes"]["measured"] for stage in plain["stages"])
        for slower in (1, 2, 4):
            rate = int(copies * bytes_each / plain["seconds"]["measured"] / slower)
            sets = ["balance.policy=offload", "balance.host=4GiB", "memory.slots=2", f"balance.rate={rate}"]
            words = [word for one in sets for word in ("--set", one)]
            self.waits(f"p = 4, offload, link {slower}", self.run(self.job(4), "--predict", profile, *words))
            own = self.run(self.job(4), "--profile", self.runs.path("own.json"), *words)
            self.waits(f"p = 4, offload, link {slower}, itself", own)

    def waits(self, what, line):
        """The step and its waits by cause, as sums over stages."""
        self.add(0.05, what, line["seconds"]["predicted"], line["seconds"]["measured"])
        busy = [sum(stage["busy_seconds"][key] for stage in line["stages"]) for key in ("predicted", "measured")]
        self.busy.setdefault(what, []).append(busy[0] / busy[1])
        for cause in ("load", "slot", "activation"):
            waits = [stage["waits"][cause] for stage in line["stages"]]
            self.add(0.05, f"{what}, {cause}", *(sum(wait[key] for wait in waits) for key in ("predicted", "measured")))

    def estimate(self, number):
        shapes = [("one.json", {"micro_batch": 1, "micro_batches": 16}), ("two.json", {"micro_batch": 2, "micro_batches": 8})]
        found = {}
        for name, shape in shapes if number % 2 == 0 else shapes[::-1]:
            found[name] = self.profile(2, name, **shape)
        (one, first), (two, second) = found["one.json"], found["two.json"]
        done = subprocess.run([measuring.CTL, "estimate", "--profile", one, "--profile", two, "-o", "json"], check=True,
                              stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.add(0.05, "gain of micro-batch 1 -> 2, p = 2", json.loads(done.stdout)["speedup"],
                 first["seconds"]["measured"] / second["seconds"]["measured"])

    # ---- results

    def report(self):
        print(f"{'':<42} predicted  measured   error   (spread)   {self.options.layers} layers, hidden "
              f"{self.options.hidden}, seq {self.options.seq}, {os.cpu_count()} cores")
        all_good = True
        for what, (bound, pairs) in self.rows.items():
            errors = [predicted / measured - 1 for predicted, measured in pairs]
            middle = statistics.median(errors)
            predicted, measured = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            all_good = all_good and abs(middle) <= bound
            busy = f"; operations {100 * (statistics.median(self.busy[what]) - 1):+.1f} %" if what in self.busy else ""
            print(f"{what:<42} {predicted:9.4f} {measured:9.4f} {100 * middle:+7.1f} %   "
                  f"({measuring.spread([100 * error for error in errors], '+.1f')} %{busy})  "
                  f"{measuring.verdict(abs(middle) <= bound, f'within {100 * bound:.0f} %')}")
        print(f"peak slots and block bytes: {self.checked} of {self.checked} equal")
        return all_good


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--steps", type=measuring.count(4), default=21, metavar="N",
                       help="of a run, the first of which does not count (default 21)")
    flags.add_argument("--hidden", type=measuring.heads, default=256, metavar="N", help="of the model (default 256)")
    flags.add_argument("--layers", type=measuring.count(8), default=8, metavar="N", help="of the model (default 8)")
    flags.add_argument("--seq", type=measuring.count(8), default=128, metavar="N",
                       help="tokens of a sequence (default 128)")
    measuring.add_rounds(flags, 3, "--repeat")
    measuring.add_limit(flags, 12)
    flags.add_argument("--only", type=measuring.names_of(QUESTIONS), default=QUESTIONS, metavar="NAME,...",
                       help=f"questions (default {','.join(QUESTIONS)})")
    options = flags.parse_args()
    with measuring.Runs() as runs:
        bench = Bench(options, runs)
        for number in measuring.rounds_within(options):
            for name in options.only:
                tell(f"round {number + 1}: {name}")
                getattr(bench, name)(number)
        good = bench.report()
    sys.exit(0 if good else 1)


main()
