#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near predicted step times come to measured ones on this machine.

    tools/bench/prediction.py [--steps 21] [--hidden 256] [--layers 8] [--repeat 3] [--only replay,two,four,estimate]

replay    one recorded step with its own durations, simulated: within 2 %
two       p = 2: a profile of a 1f1b run predicts other schedules and numbers of micro-batches: within 5 %
four      p = 4 from a profile of p = 4 1f1b, the stages sharing the machine's cores: within 10 %
estimate  what the estimator says of micro-batch 1 -> 2 from two profiles, beside the measured gain: within 5 %

Each row is the median of `--repeat` pairs of (profile, measured run), taken one after the other so that both see the same
machine; a step's time is the median of a run's steps but the first. Peak slots are compared exactly. Ends with 1 when a row
is outside its bound: on a machine that does other work, look at the spread before believing it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CTL = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin")), "ballastctl")


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.rows = options, folder, []
        self.text = os.path.join(folder, "text")
        with open("/usr/share/common-licenses/GPL-3", "rb") as source, open(self.text, "wb") as file:
            file.write(source.read() * 4)

    def job(self, stages, schedule="1f1b", micro_batch=2, micro_batches=8, recompute="none"):
        path = os.path.join(self.folder, "job.yaml")
        with open(path, "w") as file:
            json.dump({
                "model": {"family": "gpt2", "layers": self.options.layers, "hidden": self.options.hidden,
                          "heads": self.options.hidden // 64, "vocab": 256, "seq": self.options.seq},
                "data": {"train": self.text, "format": "text"},
                "train": {"steps": self.options.steps, "micro_batch": micro_batch, "micro_batches": micro_batches,
                          "lr": 1e-4},
                "pipeline": {"stages": stages, "schedule": schedule, "recompute": recompute, "threads": 1},
            }, file)
        return path

    def run(self, job, *arguments):
        report = os.path.join(self.folder, "report.jsonl")
        subprocess.run([CTL, "run", job, "--local", "--report", report, *arguments], check=True, timeout=600,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(report) as file:
            line = json.loads(file.read().splitlines()[-1])
        for stage in line["stages"]:
            for key in ("peak_slots", "slot_bytes"):
                if stage[key]["predicted"] != stage[key]["measured"]:
                    sys.exit(f"stage {stage['stage']}: {key} {stage[key]}: these must be equal")
        return line

    def profile(self, stages, name="profile.json", **shape):
        path = os.path.join(self.folder, name)
        return path, self.run(self.job(stages, **shape), "--profile", path)

    def row(self, bound, what, pairs):
        errors = sorted(predicted / measured - 1 for predicted, measured in pairs)
        middle = statistics.median(errors)
        predicted, measured = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        self.rows.append((abs(middle) <= bound, what))
        print(f"{what:<46} {predicted:9.4f} {measured:9.4f} {100 * middle:+7.1f} %   ({100 * errors[0]:+.1f} .. "
              f"{100 * errors[-1]:+.1f} %)  within {100 * bound:.0f} %: {'yes' if abs(middle) <= bound else 'NO'}",
              flush=True)

    def repeat(self, function):
        return [function() for _ in range(self.options.repeat)]

    # ---- the four questions

    def replay(self):
        def once():
            line = self.profile(2)[1]["replay_seconds"]
            return line["predicted"], line["measured"]
        self.row(0.02, "replay of a recorded step, p = 2", self.repeat(once))

    def predict(self, stages, bound, shapes):
        pairs = {name: [] for name in shapes}
        for _ in range(self.options.repeat):
            for name, shape in shapes.items():
                profile, _ = self.profile(stages)
                seconds = self.run(self.job(stages, **shape), "--predict", profile)["seconds"]
                pairs[name].append((seconds["predicted"], seconds["measured"]))
        for name, found in pairs.items():
            self.row(bound, f"p = {stages}, {name}", found)

    def two(self):
        self.predict(2, 0.05, {"1f1b": {}, "1f1b, m 16": {"micro_batches": 16}, "gpipe": {"schedule": "gpipe"},
                               "interleaved": {"schedule": "interleaved"}, "zb-h1": {"schedule": "zb-h1"},
                               "1f1b, full recomputation": {"recompute": "full"}})

    def four(self):
        self.predict(4, 0.10, {"1f1b": {}, "1f1b, m 16": {"micro_batches": 16}, "gpipe": {"schedule": "gpipe"},
                               "zb-h1": {"schedule": "zb-h1"}})

    def estimate(self):
        def once():
            one, first = self.profile(2, "one.json", micro_batch=1, micro_batches=16)
            two, second = self.profile(2, "two.json", micro_batch=2, micro_batches=8)
            done = subprocess.run([CTL, "estimate", "--profile", one, "--profile", two, "-o", "json"], check=True,
                                  stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
            return json.loads(done.stdout)["speedup"], first["seconds"]["measured"] / second["seconds"]["measured"]
        self.row(0.05, "gain of micro-batch 1 -> 2, p = 2", self.repeat(once))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="replay,two,four,estimate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        bench = Bench(options, folder)
        print(f"{'':<46} predicted  measured   error   (spread)   {options.layers} layers, hidden {options.hidden}, "
              f"seq {options.seq}, {os.cpu_count()} cores")
        for name in options.only.split(","):
            getattr(bench, name)()
        sys.exit(0 if all(good for good, _ in bench.rows) else 1)


main()
