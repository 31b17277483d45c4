# SPDX-License-Identifier: Apache-2.0
"""The programs of tools/bench that compare runs: all say what they do and take --rounds, bad flags are
refused by name and reason before anything runs, programs that are not there are named, and a smallest comparison tells
progress on stderr and ends with a table. What they measure is not judged here."""
import os
import subprocess
import sys

from ballast import BIN, ROOT, environment, scratch

ROUNDS = ["auto", "balance", "bf16", "checkpoint", "containers", "pipeline", "prediction", "pytorch_compare",
          "pytorch_stage", "startup"]
REFUSED = [("auto --rounds 0", "argument --rounds: must be at least 1, is 0"),
           ("auto --only slow", "argument --only: 'slow' is none of fast, throttled, tight, loose, small"),
           ("auto --hidden 100", "argument --hidden: must be a multiple of 64, is 100"),
           ("auto --minutes nan", "argument --minutes: must be above 0, is nan"),
           ("auto --round 2", "unrecognized arguments: --round 2"),
           ("balance --micro-batches x", "argument --micro-batches: must be a whole number, is 'x'"),
           ("checkpoint --folder /no/such", "--folder /no/such: is no folder that can be written to"),
           ("pipeline --stages 4", "--stages: goes with --ahead"),
           ("pipeline --ahead --stages 4", "--layers 4: are too few for 4 stages"),
           ("prediction --only two,,foo", "argument --only: 'foo' is none of replay, two, four, replicas, host, estimate"),
           ("startup /no/such.yaml", "JOB.yaml: /no/such.yaml is not there")]


def bench(folder, words, expect, **more):
    name, *rest = words.split()
    done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tools", "bench", f"{name}.py"), *rest],
                          env=dict(environment(folder), **more), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode in expect, (words, done.returncode, done.stdout, done.stderr[-2000:])
    return done


def main():
    with scratch() as folder:
        for name in ROUNDS:
            said = bench(folder, f"{name} --help", [0]).stdout
            assert "--rounds N" in said and "how often everything is run" in said, said
        for words, reason in REFUSED:
            done = bench(folder, words, [2])
            assert reason in done.stderr and done.stdout == "", (words, done.stderr)
        done = bench(folder, "auto --rounds 1", [1], BALLAST_BIN="/no/such")
        assert done.stderr.strip().endswith("say in BALLAST_BIN where the programs are"), done.stderr
        small = "--hidden 64 --seq 16 --rounds 1"
        done = bench(folder, f"auto --only tight --steps 3 {small}", [0, 1], BALLAST_BIN=BIN)
        assert "round 1, tight: auto " in done.stderr and "auto chose " in done.stderr, done.stderr
        assert "1 rounds" in done.stdout and "tight      auto " in done.stdout and "within 2 %: " in done.stdout, done.stdout
        done = bench(folder, f"prediction --only replay --steps 4 {small}", [0, 1], BALLAST_BIN=BIN)
        assert "replay of a recorded step, p = 4" in done.stdout and "of 12 equal" in done.stdout, done.stdout
        print("ok")


main()
