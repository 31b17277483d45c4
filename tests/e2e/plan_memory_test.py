# SPDX-License-Identifier: Apache-2.0
"""What `ballastctl plan` says the fullest device needs is what the fullest stage of the written job holds, to the byte, in fp32
and bf16, with checkpoints and without, ahead of commits, with a head of its own, uneven layers and several chunks; and under
--memory no stage holds more. Without stage-service to ask, the plan says what it leaves out. (Every tag of a stage in many more
settings: executor/footprint.)"""
import json
import os
import shutil
import signal
import subprocess

import ballast


def plan(folder, job, *arguments, program=ballast.CTL, **more):
    done = subprocess.run([program, "plan", job, "-o", "json", *arguments], env=dict(ballast.environment(folder), **more), text=True,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout)


def reported(folder):
    """Bytes of every stage as the driver knows them by now; empty until it has asked all."""
    done = subprocess.run([ballast.CTL, "stages", "-o", "json", "--timeout", "60"], env=ballast.environment(folder), text=True,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    stages = [stage["memory"] for stage in json.loads(done.stdout)]
    return [sum(memory.values()) for memory in stages] if all(stages) else []


def held(folder, job):
    """Bytes of every stage, while the job runs."""
    run = ballast.Run(folder, job, "--local", "--steps", "1000000")
    try:
        run.wait_for(lambda steps: len(steps) >= 1, "no step ended")
        found = ballast.wait_until(lambda: reported(folder), 120, "no stage told its memory")
        run.end(expect=130, number=signal.SIGINT)
    finally:
        run.kill()
    return found


def write(folder, saves=False, **train):
    model = dict(ballast.small_inline(layers=5, seq=48), tied=train.pop("tied", True))
    sections = {"checkpoint": {"folder": os.path.join(folder, "saved"), "every": 1000000}} if saves else {}
    return ballast.write_job(folder, model=model, data={"train": [__file__], "format": "text"},
                             train={"micro_batch": 2, "micro_batches": 4, **train}, pipeline={"stages": 2}, **sections)


def check(folder, limit=None, **settings):
    words = settings.pop("words")
    job, path = write(folder, **settings), os.path.join(folder, "planned.yaml")
    arguments = ["--micro-batch", "2", *words, "--write", path]
    if limit is not None:
        free = plan(folder, job, *arguments[:-2])["best"]["memory_bytes"]
        arguments += ["--memory", str(int(free * limit))]
    answer = plan(folder, job, *arguments)
    best = answer["best"]
    assert "memory_without" not in answer, answer["memory_unknown"]
    bytes_held = held(folder, path)
    assert max(bytes_held) == best["memory_bytes"] or best["policy"] in ("bpipe", "cap", "auto"), (best, bytes_held)
    if limit is not None:
        assert max(bytes_held) <= int(free * limit), (best, bytes_held)
    print("ok", settings, words, best["layers"], best["policy"], best["recompute"], max(bytes_held))
    return best["memory_bytes"]


def check_without_service(folder):
    """The program alone: as on a laptop that plans for others."""
    alone = os.path.join(folder, "alone")
    os.mkdir(alone)
    program = shutil.copy(ballast.CTL, alone)
    answer = plan(alone, write(folder), "--micro-batch", "2", program=program, PATH=alone)
    assert "copies of weights" in answer["memory_without"] and "stage-service" in answer["memory_unknown"], answer
    print("ok alone:", answer["memory_unknown"])


def main():
    with ballast.scratch() as folder:
        plain = check(folder, words=["--schedule", "1f1b", "--attention", "naive"])
        saved = check(folder, saves=True, tied=False, post_validation=True, words=["--schedule", "1f1b", "--attention", "flash"])
        short = check(folder, dtype="bf16", words=["--schedule", "1f1b", "--attention", "naive"])
        assert saved > plain > short, (saved, plain, short)
        check(folder, dtype="bf16", saves=True, words=["--schedule", "v-half"])
        check(folder, saves=True, limit=0.9, words=["--schedule", "1f1b", "--attention", "naive"])
        check_without_service(folder)


main()
