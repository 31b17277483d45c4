# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder that compare runs have in common: flags, a folder with a job, runs of it by `ballastctl
run --local`, and how they tell what goes on.

Results go to stdout, progress to stderr. A run that fails ends the program with what ballastctl said of it.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
CTL = os.path.join(BIN, "ballastctl")
TEXT = "/usr/share/common-licenses/GPL-3"
TEXT = TEXT if os.path.exists(TEXT) else os.path.join(ROOT, "LICENSE")
RUN_LIMIT_S = 900
BEGAN = time.monotonic()


def tell(text):
    """Progress, with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", file=sys.stderr, flush=True)


# ---- flags

def count(least):
    """A whole number from `least` upwards."""
    def read(text):
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, is '{text}'")
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, is {value}")
        return value
    return read


def above_zero(text):
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, is '{text}'")
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"must be above 0, is {text}")
    return value


def names_of(known):
    """A list with commas, each one of `known`."""
    def read(text):
        found = [name for name in text.split(",") if name]
        unknown = [name for name in found if name not in known]
        if unknown or not found:
            raise argparse.ArgumentTypeError(f"'{unknown[0] if unknown else text}' is none of {', '.join(known)}")
        return found
    return read


def heads(hidden):
    """A multiple of 64: heads are 64 wide."""
    value = count(64)(hidden)
    if value % 64:
        raise argparse.ArgumentTypeError(f"must be a multiple of 64, is {value}")
    return value


def parser(description):
    """Its first paragraph is what --help begins with; the rest follows the flags."""
    first, _, rest = description.partition("\n\n")
    return argparse.ArgumentParser(description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter,
                                   allow_abbrev=False)


def add_rounds(flags, preset, *old_names):
    flags.add_argument("--rounds", *old_names, type=count(1), default=preset, metavar="N",
                       help=f"how often everything is run, by turns (default {preset})")


def add_limit(flags, preset):
    flags.add_argument("--minutes", type=above_zero, default=preset, metavar="M",
                       help=f"begins no round that would not end within so many minutes (default {preset:g})")


def rounds_within(options):
    """Numbers of rounds, as many as were asked for and there is time for; at least one."""
    longest = 0
    for number in range(options.rounds):
        begun = time.monotonic()
        if number > 0 and begun - BEGAN + longest > 60 * options.minutes:
            tell(f"no time for more than {number} of {options.rounds} rounds within --minutes {options.minutes:g}")
            return
        yield number
        longest = max(longest, time.monotonic() - begun)


# ---- runs

class Runs:
    """A temporary folder with a job and its reports."""

    def __init__(self):
        if not os.access(CTL, os.X_OK):
            sys.exit(f"{CTL} is not there: build it, or say in BALLAST_BIN where the programs are")
        self.temporary = tempfile.TemporaryDirectory(prefix="ballast-bench-")
        self.folder = self.temporary.name
        self.text = os.path.join(self.folder, "text")
        with open(TEXT, "rb") as source, open(self.text, "wb") as file:
            file.write(source.read() * 4)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.temporary.cleanup()

    def path(self, name):
        return os.path.join(self.folder, name)

    def job(self, **sections):
        """A gpt2 whose heads are 64 wide, on one thread a stage; sections are merged into that."""
        model = {"family": "gpt2", "vocab": 256, **sections.pop("model")}
        model["heads"] = model["hidden"] // 64
        whole = {"model": model, "data": {"train": self.text, "format": "text"},
                 "train": {"lr": 1e-4, **sections.pop("train")},
                 "pipeline": {"schedule": "1f1b", "threads": 1, **sections.pop("pipeline")}, **sections}
        with open(self.path("job.yaml"), "w") as file:
            json.dump(whole, file)
        return self.path("job.yaml")

    def run(self, job, sets=(), flags=()):
        """All lines of the report, and what was said on stderr."""
        report = self.path("report.jsonl")
        if os.path.exists(report):
            os.remove(report)
        words = [CTL, "run", job, "--local", "--report", report, *flags]
        words += [word for pair in sets for word in ("--set", pair)]
        try:
            done = subprocess.run(words, timeout=RUN_LIMIT_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, errors="replace")
        except subprocess.TimeoutExpired:
            sys.exit(f"{' '.join(words)}: has not ended within {RUN_LIMIT_S} s")
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: ended with {done.returncode}\n" + "\n".join(done.stderr.splitlines()[-5:]))
        with open(report) as file:
            return [json.loads(line) for line in file], done.stderr

    def steps(self, job, sets=(), flags=()):
        return [event for event in self.run(job, sets, flags)[0] if event["event"] == "step"]


def bench(*words):
    """What ballast-bench says."""
    program = os.path.join(BIN, "ballast-bench")
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is not there: build it, or say in BALLAST_BIN where the programs are")
    done = subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"ballast-bench {' '.join(words)}: ended with {done.returncode}\n{done.stderr.strip()}")
    return done.stdout


def losses(steps):
    return [event["loss"].hex() for event in steps]


def check_equal(found, name):
    """Losses of runs of one job are equal to the bit, as far as both go."""
    first = next(iter(found.values()))
    for other, values in found.items():
        both = min(len(first), len(values))
        if values[:both] != first[:both]:
            sys.exit(f"{name}: losses of {other} are not those of {next(iter(found))}")


# ---- figures

def median_seconds(steps):
    return statistics.median(event["seconds"] for event in steps)


def spread(values, form=".3f"):
    return f"{min(values):{form}} to {max(values):{form}}"


def verdict(good, bound):
    return f"{bound}: {'yes' if good else 'NO'}"
