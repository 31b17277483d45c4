# SPDX-License-Identifier: Apache-2.0
"""A rank of two replicas of two tensor ranks (in the soak of two stages, too) is killed, or stands still, in every phase of a
step: while weights are handed round, in a collective of a layer, between operations, while gradients are added up, at the
commit and while a checkpoint is written. Each time the run ends with 5 within 10 s, names the rank and leaves nothing, and the
next run goes on from the last checkpoint to the bits of a run that was never disturbed.

A rank stands still at a random moment. What the others then wait for says in which phase that was; where the phase has been
had, or cannot be told, the rank goes on and another moment is tried.

BALLAST_TEST_ROUNDS: so often every phase with either signal; 0: every phase once, with one of the two."""
import contextlib
import json
import os
import signal
import subprocess
import time

from ballast import (CTL, LONGEST_S, Run, assert_nothing_left, descendants, environment, run_job, scratch, seed,
                     shared_memory_files, small_inline, write_job)
from phases import PHASES, phase_of, took

NUMBERS = [signal.SIGKILL, signal.SIGSTOP]
AFTER = 3  # steps after the last disturbance


def told(folder, command):
    done = subprocess.run([CTL, command, "-o", "json"], env=environment(folder), stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=30)
    return json.loads(done.stdout) if done.returncode == 0 else None


def disturb(run, folder, kept, choice, wanted):
    """Stops a rank in a phase that is wanted; the phase, the signal, the rank and when."""
    while True:
        steps = run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        victim = steps[-1]["stages"][choice.randrange(len(steps[-1]["stages"]))]
        name = f"tensor rank {victim['tensor']} of stage {victim['stage']} of replica {victim['data']}"
        time.sleep(choice.uniform(0, 0.2))
        begin = time.monotonic()
        os.kill(victim["pid"], signal.SIGSTOP)
        phase = phase_of(lambda: told(folder, "status"), kept, name, begin)
        for number in NUMBERS:
            if (phase, number) in wanted:
                wanted.remove((phase, number))
                if number == signal.SIGKILL:
                    begin = time.monotonic()
                    os.kill(victim["pid"], number)
                return phase, number, name, begin
        os.kill(victim["pid"], signal.SIGCONT)


def one(folder, job, kept, choice, wanted, seen):
    shared = shared_memory_files()
    saved = os.path.isdir(kept) and any(name.startswith("step-") for name in os.listdir(kept))
    run = Run(folder, job, "--local", *(["--resume"] if saved else []))
    pids = []
    try:
        run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        pids = descendants(run.pid)
        phase, number, name, begin = disturb(run, folder, kept, choice, wanted)
        message = run.end(5)
        seconds = time.monotonic() - begin
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        run.kill()
    assert name in message, f"{phase}, {number.name}: does not name {name}:\n{message[-3000:]}"
    assert seconds < LONGEST_S, f"{phase}, {number.name}: took {seconds:.1f} s"
    assert_nothing_left(folder, pids, shared)
    took(seen, run.steps())
    print(f"ok {phase}: {name}, {number.name} in step {max(seen) + 1}: exit 5 after {seconds:.2f} s", flush=True)


def main():
    choice = seed()
    rounds = int(os.environ.get("BALLAST_TEST_ROUNDS", "0"))
    phases = [*PHASES, "operations"] if rounds else PHASES  # one of two stages waits for the other
    wanted = [(phase, number) for phase in phases for number in NUMBERS] * rounds
    wanted = wanted or [(phase, choice.choice(NUMBERS)) for phase in phases]
    with scratch() as folder:
        kept = os.path.join(folder, "kept")
        # Little work and large weights: a step is gathers, reductions and commits for the most part.
        parts = {"model": small_inline(hidden=64, layers=2, seq=8, vocab=8192),
                 "data": {"train": [os.path.abspath(__file__)], "format": "text"},
                 "pipeline": {"stages": 2 if rounds else 1}, "parallel": {"tensor": 2, "data": 2},
                 "balance": {"data_path": "tcp"}}
        train = {"steps": 1000000, "micro_batch": 1, "micro_batches": 4}
        job = write_job(folder, **parts, train=train, checkpoint={"folder": kept, "every": 5, "keep": 2})
        seen = {}
        while wanted:
            one(folder, job, kept, choice, wanted, seen)
        last = max(seen)
        report, _ = run_job(folder, job, "--local", "--resume", "--steps", str(last + AFTER), timeout=300)
        took(seen, [event for event in report if event["event"] == "step"])
        alone = write_job(folder, "alone.yaml", **parts, train=train)
        report, _ = run_job(folder, alone, "--local", "--steps", str(last + AFTER), timeout=300)
        steps = [event for event in report if event["event"] == "step"]
        assert len(steps) == last + AFTER
        took(seen, steps)
        print(f"ok {last + AFTER} steps have the bits of a run that was not disturbed")


main()
