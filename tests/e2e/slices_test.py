# SPDX-License-Identifier: Apache-2.0
"""Sequences in slices (pipeline.slices): the bits of the same sliced job on one stage for every schedule, policy and path, in
bf16, on tensor ranks and replicas, twice the same; within 1e-5 of whole sequences. Held-out losses and samples. Resumed
from whole sequences and back. A store and a stage killed, policies changed live: the same bits. What cannot be is refused by
name, and memory that holds slices alone refuses whole sequences."""
import json
import os
import signal
import subprocess

from ballast import (CTL, GOLDEN, LONG, Run, environment, losses, run_job, scratch, seed, served, small_inline, stages_of,
                     write_job)

SLICES = ("--set", "pipeline.slices=4")


def job_of(folder, name="job.yaml", steps=4, **sections):
    sections.setdefault("pipeline", {"stages": 4, "schedule": "seq1f1b", "slices": 4})
    return write_job(folder, name=name, model=small_inline(hidden=32, layers=8, seq=48),
                     data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                     train={"steps": steps, "micro_batch": 2, "micro_batches": 4}, **sections)


def values(report):
    return [event["loss"] for event in report if event["event"] == "step"]


def bits(folder, place, job):
    expected = losses(run_job(folder, job, *place(1), "--set", "pipeline.stages=1")[0])
    report, _ = run_job(folder, job, *place(4))
    assert losses(report) == expected, "four stages: other losses than one"
    assert [stage["peak_slots"] for stage in report[-1]["stages"]] == [7, 6, 5, 4], report[-1]["stages"]
    assert losses(run_job(folder, job, "--local")[0]) == expected, "other losses the second time"
    whole, _ = run_job(folder, job, *place(4), "--set", "pipeline.schedule=1f1b", "--set", "pipeline.slices=1")
    assert losses(whole) != expected
    assert all(abs(a / b - 1) < 1e-5 for a, b in zip(values(whole), values(report))), (values(whole), values(report))
    print(f"ok seq1f1b: {values(report)[-1]}, whole sequences {values(whole)[-1]}")
    for schedule in ("zb-h1", "interleaved", *(("gpipe", "v-half", "1f1b-v") if LONG else ())):  # see combinations_test.py
        assert losses(run_job(folder, job, *place(4), "--set", f"pipeline.schedule={schedule}")[0]) == expected, schedule
    print("ok other schedules")
    for name, words in (("flash", ("pipeline.attention=flash",)), ("bf16", ("train.dtype=bf16",)),
                        ("two parts", ("parallel.tensor_parts=2",)), ("two halves", ("parallel.data_parts=2",))):
        settings = [word for value in words for word in ("--set", value)]
        alone = losses(run_job(folder, job, *place(1), *settings, "--set", "pipeline.stages=1")[0])
        more = {"two parts": ("--set", "parallel.tensor=2", "--set", "pipeline.stages=2"),
                "two halves": ("--set", "parallel.data=2", "--set", "pipeline.stages=2")}.get(name, ())
        assert losses(run_job(folder, job, *place(4), *settings, *more)[0]) == alone, name
        print(f"ok {name}")
    return expected


def policies(folder, place, job, expected):
    host = ("balance.host=64MiB",)
    for name, words, key in (("bpipe", ("balance.policy=bpipe",), "loaded"),
                             ("cap", ("balance.policy=cap", "balance.cap=6", "balance.mode=fewest"), "loaded"),
                             ("drop", ("balance.policy=drop", "memory.slots=3"), "recomputed"),
                             ("offload", ("balance.policy=offload", "memory.slots=2", *host), "loaded"),
                             ("auto", ("balance.policy=auto", "memory.slots=3", *host), None),
                             ("recomputed", ("pipeline.recompute=full",), None),
                             ("attention recomputed", ("pipeline.recompute=attention",), None)):
        settings = [word for value in words for word in ("--set", value)]
        for path in ("shm", "tcp") if LONG or name in ("bpipe", "offload") else ("tcp",):
            report, _ = run_job(folder, job, *place(4, stores=True, host=host[0] in words), *settings, "--set",
                                f"balance.data_path={path}")
            assert losses(report) == expected, f"{name} over {path}: other losses"
            assert key is None or sum(stage[key] for stage in stages_of(report)) > 0, (name, stages_of(report))
        print(f"ok {name}")


def held_out(folder):
    """And text that is drawn, of a context that fills several slices in the end."""
    job = job_of(folder, name="held.yaml")
    told, drawn = [], []
    for words in ((), ("--set", "pipeline.stages=1"), ("--set", "pipeline.schedule=interleaved"),
                  ("--set", "pipeline.slices=1", "--set", "pipeline.schedule=1f1b")):
        report, done = run_job(folder, job, "--local", "--set", f"data.validation={GOLDEN}/gpt2/tokens.bin", "--set",
                               "train.validate_every=2", "--sample", "40", *words)
        told.append([event["loss"] for event in report if event["event"] == "validation"])
        drawn.append([line for line in done.stdout.splitlines() if "held-out" not in line and "tokens" not in line])
    assert len(told[0]) == 2 and told[0] == told[1] == told[2], told
    assert all(abs(a / b - 1) < 1e-5 for a, b in zip(told[0], told[3])), told
    assert drawn[0] and drawn[0] == drawn[1] == drawn[2], drawn
    print(f"ok held-out losses {told[0]}")


def resumed(folder, place):
    """To slices of another number, to whole sequences and another schedule, and back: each as the same steps on one stage."""
    outcome = []
    for where in ("one", "four"):
        base = os.path.join(folder, where)
        os.mkdir(base, 0o700)
        job = job_of(base, steps=2, checkpoint={"folder": os.path.join(base, "saved"), "every": 2})
        ranks = 1 if where == "one" else 4
        words_of_all = (*place(ranks), "--set", f"pipeline.stages={ranks}")
        seen = losses(run_job(base, job, *words_of_all)[0])
        for steps, words in ((4, ("pipeline.schedule=1f1b", "pipeline.slices=1")), (6, ("pipeline.schedule=zb-h1", "pipeline.slices=2")),
                             (8, ())):
            settings = [word for value in words for word in ("--set", value)]
            report, _ = run_job(base, job, "--resume", "--steps", str(steps), *words_of_all, *settings)
            seen += [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
        outcome.append(seen)
    assert len(outcome[0]) == 8 and outcome[0] == outcome[1], outcome
    print("ok resumed")


def disturbed(folder, choice):
    job = job_of(folder, name="disturbed.yaml", steps=1000000, memory={"slots": 7},
                 balance={"policy": "cap", "cap": 6, "mode": "fewest", "host": "64MiB"})
    run = Run(folder, job, "--local")
    try:
        steps = run.wait_for(lambda s: s and s[-1]["stages"][0]["loaded"] > 0, "nothing is parked")
        store = steps[-1]["stores"][3]["pid"]
        os.kill(store, signal.SIGKILL)
        run.wait_for(lambda s: s[-1]["stores"][3]["pid"] != store and s[-1]["stages"][0]["loaded"] > 0, "nothing parked again")
        for words in (("none",), ("offload", "3", "--mode", "fewest"), ("drop", "4"), ("cap", "6")):
            done = subprocess.run([CTL, "policy", "set", *words, "--wait"], env=environment(folder), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
            assert done.returncode == 0, (words, done.stderr)
        seen = len(run.steps())
        run.wait_for(lambda s: len(s) > seen + choice.randrange(1, 4), "no step")
    finally:
        run.end(130, signal.SIGINT)
    steps = run.steps()
    expected = losses(run_job(folder, job, "--local", "--steps", str(len(steps)), "--set", "balance.policy=none", "--set",
                              "pipeline.stages=1", "--set", "memory.slots=16", timeout=600)[0])
    assert losses(steps) == expected, "other losses"
    print(f"ok a store killed and policies changed: {len(steps)} steps")


def killed(folder, choice):
    base = os.path.join(folder, "killed")
    os.mkdir(base, 0o700)
    job = job_of(base, steps=400, checkpoint={"folder": os.path.join(base, "saved"), "every": 3})
    run = Run(base, job, "--local")
    steps = run.wait_for(lambda s: len(s) > 4, "no steps")
    victim = choice.randrange(4)
    os.kill(steps[-1]["stages"][victim]["pid"], signal.SIGKILL)
    assert f"stage {victim}" in run.end(5), run.log()[-2000:]
    last = max(int(name[5:]) for name in os.listdir(os.path.join(base, "saved")) if name.startswith("step-"))
    report, _ = run_job(base, job, "--local", "--resume", "--steps", str(last + 3))
    again = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    whole = losses(run_job(folder, job_of(folder, name="whole.yaml", steps=400), "--local", "--steps", str(last + 3), "--set",
                           "pipeline.stages=1")[0])
    assert again == whole[last:], "other losses after a stage was killed"
    print(f"ok stage {victim} killed, gone on from step {last}")


def refusals(folder, job):
    for words, message in ((("pipeline.slices=5",), "pipeline.slices: 5 do not divide model.seq 48; 4 would"),
                           (("pipeline.slices=0",), "pipeline.slices: must be at least 1"),
                           (("pipeline.schedule=1f1b", "pipeline.slices=1", "memory.activation_bytes=1500000"),
                            "it fits with balance.policy: bpipe or pipeline.slices: 2"),
                           (("pipeline.slices=16", "parallel.tensor_parts=4"), "parallel.tensor_parts")):
        settings = [word for value in words for word in ("--set", value)]
        _, done = run_job(folder, job, "--local", *settings, expect=2)
        assert message in done.stderr, (words, done.stderr)
    done = subprocess.run([CTL, "simulate", job, "-o", "json"], env=environment(folder), text=True, capture_output=True)
    memory = json.loads(done.stdout)["stages"][0]["memory"]
    assert memory["kv-cache"] > 0, memory
    print("ok refusals")


def main():
    choice = seed()
    with scratch() as folder:
        job = job_of(folder)
        refusals(folder, job)
        with served(folder) as place:
            policies(folder, place, job, bits(folder, place, job))
            resumed(folder, place)
        held_out(folder)
        disturbed(folder, choice)
        killed(folder, choice)


main()
