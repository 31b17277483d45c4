# SPDX-License-Identifier: Apache-2.0
"""Two pipes in opposite directions (chimera, dualpipe), each with a copy of the model: the bits of one pipe with
parallel.data_parts: 2, for every policy, path, recomputation and dtype, on replicas and tensor ranks, twice the same; within
1e-5 of 1f1b. Held-out losses and samples. Resumed from one pipe and back. A store and a stage killed, policies changed live: the same bits. What cannot be
is refused by name."""
import json
import os
import signal
import subprocess

from ballast import (CTL, GOLDEN, LONG, Run, environment, losses, run_job, scratch, seed, served, small_inline, stages_of,
                     write_job)

BOTH = ("chimera", "dualpipe")
ONE_PIPE = {"pipeline.schedule": "1f1b", "parallel.data_parts": 2}
ALONE = {**ONE_PIPE, "pipeline.stages": 1}


def sets(values):
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def job_of(folder, name="job.yaml", steps=4, tied=True, **sections):
    sections.setdefault("pipeline", {"stages": 4, "schedule": "chimera"})
    return write_job(folder, name=name, model={**small_inline(hidden=32, layers=8, seq=24), "tied": tied},
                     data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                     train={"steps": steps, "micro_batch": 2, "micro_batches": 8}, **sections)


def run(folder, job, values, *words, place=None):
    """At that place, or by processes of its own."""
    where = ["--local"]
    if place:
        ranks = values.get("pipeline.stages", 4) * values.get("parallel.data", 1) * values.get("parallel.tensor", 1)
        where = place(ranks, stores="balance.policy" in values, host="balance.host" in values)
    return run_job(folder, job, *where, *sets(values), *words)[0]


def bits(folder, place):
    """Of every shape, with heads tied and untied, and in four parts of which every copy adds up two."""
    for tied in (True, False):
        job = job_of(folder, tied=tied)
        expected = losses(run(folder, job, ALONE, place=place))
        quarters = losses(run(folder, job, {**ALONE, "parallel.data_parts": 4}, place=place))
        assert quarters != expected
        for schedule in BOTH:
            for count in (2, 4) if LONG or tied else (4,):
                shape = {"pipeline.schedule": schedule, "pipeline.stages": count}
                assert losses(run(folder, job, shape, place=place)) == expected, f"{schedule} on {count} stages: other losses"
            if LONG or tied:
                assert losses(run(folder, job, shape, place=place)) == expected, "other losses the second time"
                shape["parallel.data_parts"] = 4
                assert losses(run(folder, job, shape, place=place)) == quarters, f"{schedule} in four parts"
    job = job_of(folder)
    expected = losses(run(folder, job, ALONE, place=place))
    whole = [event["loss"] for event in run(folder, job, {"pipeline.schedule": "1f1b"}, place=place) if event["event"] == "step"]
    both = [event["loss"] for event in run(folder, job, {}, place=place) if event["event"] == "step"]
    assert all(abs(a / b - 1) < 1e-5 for a, b in zip(whole, both)), (whole, both)
    uneven = {"pipeline.layers_per_stage": "[1, 2, 4, 1]"}
    assert losses(run(folder, job, uneven, place=place)) == expected, "uneven layers: other losses"
    print(f"ok bits: {both[-1]}, 1f1b {whole[-1]}")
    for i, (name, values) in enumerate([("bf16", {"train.dtype": "bf16"}), ("flash", {"pipeline.attention": "flash"}),
                                        ("clipped", {"train.clip": 0.5}), ("a layer in parts", {"parallel.tensor_parts": 2}),
                                        ("ahead of commits", {"train.post_validation": "true"})]):
        alone = losses(run(folder, job, {**values, **ALONE}, place=place))
        for schedule in BOTH if LONG else [BOTH[i % 2]]:
            assert losses(run(folder, job, {**values, "pipeline.schedule": schedule}, place=place)) == alone, (name, schedule)
        print(f"ok {name}")
    return job, expected


def shared(folder, place):
    """By replicas, each with both copies, and by tensor ranks; gone on with by one pipe on one rank."""
    base = os.path.join(folder, "shared")
    os.mkdir(base, 0o700)
    job = job_of(base, checkpoint={"folder": os.path.join(base, "saved"), "every": 2}, parallel={"data_parts": 4, "tensor_parts": 2})
    whole = losses(run(folder, job_of(folder, name="parts.yaml", steps=6, parallel={"data_parts": 4, "tensor_parts": 2}),
                       {"pipeline.schedule": "1f1b", "pipeline.stages": 1}, place=place))
    grids = [("chimera", 2, 2, 2, "shm", {}), ("dualpipe", 2, 2, 1, "tcp", {}),
             ("chimera", 4, 1, 2, "tcp", {"balance.policy": "drop", "memory.slots": 3})]
    more = [("dualpipe", 2, 2, 2, "tcp", {}), ("chimera", 4, 2, 2, "shm", {"pipeline.recompute": "full"}),
            ("chimera", 4, 2, 1, "shm", {"balance.policy": "offload", "memory.slots": 3, "balance.host": "64MiB"})]
    for schedule, count, data, tensor, path, values in grids + (more if LONG else []):
        shape = {"pipeline.schedule": schedule, "pipeline.stages": count, "parallel.data": data, "parallel.tensor": tensor,
                 "balance.data_path": path, **values}
        report = run(base, job, {**shape, "checkpoint.every": 0, "checkpoint.folder": "null"}, place=place)
        assert losses(report) == whole[:4], f"{shape}: other losses"
        print(f"ok {schedule} on {count} stages, {data} replicas, {tensor} tensor ranks, {path}")
    run(base, job, {"pipeline.stages": 2, "parallel.data": 2, "parallel.tensor": 2}, place=place)
    report = run(base, job, {"pipeline.schedule": "1f1b", "pipeline.stages": 1}, "--resume", "--steps", "6", place=place)
    again = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    assert again == whole[4:], "other losses after a run of two copies on replicas"


def policies(folder, place, job, expected):
    """Stages keep alike much, so that devices have little room for each other; the host has, and blocks can be given up.
    Eight stages of chimera keep 5, 6, 8, 8, 8, 8, 7 and 6 blocks: the outer ones have room for one of each inner one."""
    host = {"balance.host": "64MiB"}
    ways = [("chimera", "shm"), ("chimera", "tcp"), ("dualpipe", "shm")]
    every = (("bpipe", {"balance.policy": "bpipe", "balance.cap": 5}, None),
             ("cap", {"balance.policy": "cap", "balance.cap": 3, **host}, "loaded"),
             ("drop", {"balance.policy": "drop", "memory.slots": 3}, "recomputed"),
             ("offload", {"balance.policy": "offload", "memory.slots": 3, **host}, "loaded"),
             ("auto", {"balance.policy": "auto", "memory.slots": 3, **host}, None),
             ("recomputed", {"pipeline.recompute": "full"}, None),
             ("attention recomputed", {"pipeline.recompute": "attention"}, None))
    for i, (name, values, key) in enumerate(every):  # the others are in combinations_test.py
        for schedule, path in ways if LONG else [ways[i % 3]]:
            report = run(folder, job, {**values, "pipeline.schedule": schedule, "balance.data_path": path}, place=place)
            assert losses(report) == expected, f"{name} of {schedule} over {path}: other losses"
            assert key is None or sum(stage[key] for stage in stages_of(report)) > 0, (name, stages_of(report))
        print(f"ok {name}")
    report = run(folder, job, {"pipeline.stages": 8, "balance.policy": "cap", "balance.cap": 7}, place=place)
    assert losses(report) == expected, "parked at other devices: other losses"
    step = next(event for event in report if event["event"] == "step")
    loaded = [stage["loaded"] for stage in step["stages"]]
    assert loaded == [0, 0, 1, 1, 1, 1, 0, 0] and max(stage["peak_slots"] for stage in step["stages"]) == 7, step
    print(f"ok parked at other devices: {loaded} blocks a step")


def held_out(folder):
    """Through the first pipe alone, and so as on one."""
    job = job_of(folder, name="held.yaml")
    told, drawn = [], []
    for values in ({}, {"pipeline.schedule": "dualpipe"}, ALONE):
        report, done = run_job(folder, job, "--local", "--set", f"data.validation={GOLDEN}/gpt2/tokens.bin", "--set",
                               "train.validate_every=2", "--sample", "12", *sets(values))
        told.append([event["loss"] for event in report if event["event"] == "validation"])
        drawn.append([line for line in done.stdout.splitlines() if "held-out" not in line and "tokens" not in line])
    assert len(told[0]) == 2 and told[0] == told[1] == told[2], told
    assert drawn[0] and drawn[0] == drawn[1] == drawn[2], drawn
    print(f"ok held-out losses {told[0]}")


def resumed(folder, place):
    """To one pipe, to the other schedule and back: what is saved knows nothing of copies."""
    base = os.path.join(folder, "resumed")
    os.mkdir(base, 0o700)
    job = job_of(base, steps=2, checkpoint={"folder": os.path.join(base, "saved"), "every": 2})
    seen = losses(run(base, job, {}, place=place))
    for steps, values in ((4, {**ONE_PIPE, "pipeline.stages": 2}), (6, {"pipeline.schedule": "dualpipe"}),
                          (8, {**ONE_PIPE, "pipeline.schedule": "zb-v"}), (10, {"pipeline.stages": 2})):
        report = run(base, job, values, "--resume", "--steps", str(steps), place=place)
        seen += [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    whole = losses(run(folder, job_of(folder, name="whole.yaml", steps=10), ALONE, place=place))
    assert len(seen) == 10 and seen == whole, (seen, whole)
    print("ok resumed")


def disturbed(folder, choice):
    schedule = choice.choice(BOTH)
    job = job_of(folder, name="disturbed.yaml", steps=1000000, pipeline={"stages": 4, "schedule": schedule},
                 balance={"policy": "cap", "cap": 3, "host": "64MiB"})
    running = Run(folder, job, "--local")
    try:
        steps = running.wait_for(lambda s: s and s[-1]["stages"][0]["loaded"] > 0, "nothing is parked")
        stores = {store["pid"] for store in steps[-1]["stores"]}
        victim = next(i for i, store in enumerate(steps[-1]["stores"]) if store["peak_leased"] > 0)
        os.kill(steps[-1]["stores"][victim]["pid"], signal.SIGKILL)
        running.wait_for(lambda s: s[-1]["stores"][victim]["pid"] not in stores and s[-1]["stages"][0]["loaded"] > 0,
                         "nothing parked again")
        for words in (("none",), ("offload", "3"), ("drop", "3"), ("cap", "3")):
            done = subprocess.run([CTL, "policy", "set", *words, "--wait"], env=environment(folder), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
            assert done.returncode == 0, (words, done.stderr)
        seen = len(running.steps())
        running.wait_for(lambda s: len(s) > seen + choice.randrange(1, 4), "no step")
    finally:
        running.end(130, signal.SIGINT)
    steps = running.steps()
    expected = losses(run_job(folder, job, "--local", "--steps", str(len(steps)), *sets({**ALONE, "balance.policy": "none"}),
                              timeout=600)[0])
    assert losses(steps) == expected, "other losses"
    print(f"ok a store killed and policies changed under {schedule}: {len(steps)} steps")


def killed(folder, choice):
    base = os.path.join(folder, "killed")
    os.mkdir(base, 0o700)
    job = job_of(base, steps=400, checkpoint={"folder": os.path.join(base, "saved"), "every": 3})
    running = Run(base, job, "--local", *sets({"pipeline.schedule": choice.choice(BOTH)}))
    steps = running.wait_for(lambda s: len(s) > 4, "no steps")
    victim = choice.randrange(4)
    os.kill(steps[-1]["stages"][victim]["pid"], signal.SIGKILL)
    assert f"stage {victim}" in running.end(5), running.log()[-2000:]
    last = max(int(name[5:]) for name in os.listdir(os.path.join(base, "saved")) if name.startswith("step-"))
    report = run(base, job, {}, "--resume", "--steps", str(last + 3))
    again = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    whole = losses(run(folder, job_of(folder, name="whole.yaml", steps=400), ALONE, "--steps", str(last + 3)))
    assert again == whole[last:], "other losses after a stage was killed"
    print(f"ok stage {victim} killed, gone on from step {last}")


def refusals(folder, job):
    for values, message in (({"train.micro_batches": 7}, "7 cannot go half each way, as chimera sends them; 6 can"),
                            ({"train.micro_batches": 1}, "1 cannot go half each way, as chimera sends them; 2 can"),
                            ({"pipeline.stages": 3}, "needs an even number of stages"),
                            ({"pipeline.schedule": "dualpipe", "train.micro_batches": 6}, "at least twice as many micro-batches"),
                            ({"pipeline.chunks": 4}, "pipeline.chunks: is 4; the schedule chimera has 2 per stage"),
                            ({"pipeline.layers_per_stage": "[1, 1, 1, 1, 1, 1, 1, 1]"}, "pipeline.layers_per_stage"),
                            ({"parallel.data_parts": 1}, "1 part cannot be shared by 1 replica (parallel.data), each with a copy for either "
                             "direction of chimera; 2 can"),
                            ({"parallel.data": 2, "parallel.data_parts": 2}, "2 parts cannot be shared by 2 replicas"),
                            ({"parallel.data": 3, "train.micro_batches": 12, "parallel.data_parts": 3},
                             "3 parts cannot be shared by 3 replicas (parallel.data), each with a copy for either direction of "
                             "chimera; 6 can: as many as copies"),
                            ({"pipeline.slices": 2}, "pipeline.slices: "),
                            ({"balance.policy": "cap", "balance.cap": 3}, "the smallest that works is 4"),
                            ({"balance.policy": "cap", "balance.cap": 4, "pipeline.schedule": "dualpipe"},
                             "the smallest that works is 5")):
        _, done = run_job(folder, job, "--local", *sets(values), expect=2)
        assert message in done.stderr, (values, done.stderr)
    done = subprocess.run([CTL, "plan", job, "--schedule", "chimera"], env=environment(folder), text=True,
                          capture_output=True)
    assert done.returncode == 2 and "plans are of one copy of the model" in done.stderr, done.stderr
    print("ok refusals")


def told(folder, job):
    """Both copies are in the memory that is told before a run, with half of the moments; pictures have both pipes."""
    memory = []
    for values in ({}, ONE_PIPE):
        done = subprocess.run([CTL, "simulate", job, *sets(values), "-o", "json"], env=environment(folder), text=True,
                              capture_output=True, check=True)
        memory.append([stage["memory"] for stage in json.loads(done.stdout)["stages"]])
    for tag, times in (("weights", 2), ("optimizer", 1)):
        both, one = (sum(stage[tag] for stage in stages) for stages in memory)
        assert abs(both / one - times) < 0.05, (tag, both, one)
    picture = os.path.join(folder, "order.svg")
    subprocess.run([CTL, "schedule", "show", "--schedule", "chimera", "--stages", "4", "--micro-batches", "8", "--svg", picture],
                   env=environment(folder), stdout=subprocess.DEVNULL, check=True)
    ran = os.path.join(folder, "ran.svg")
    profile = os.path.join(folder, "profile.json")
    run(folder, job, {"pipeline.cores": 2}, "--timeline", ran, "--profile", profile)
    for values in ({"pipeline.cores": 2}, ONE_PIPE):
        done = subprocess.run([CTL, "simulate", job, *sets(values), "--profile", profile, "-o", "json"],
                              env=environment(folder), text=True, capture_output=True, check=True)
        simulated = json.loads(done.stdout)
        gathers = sum(stage["stall_seconds"].get("gather", 0) for stage in simulated["stages"])
        assert 0 < simulated["bubble"] < 1 and (gathers > 0) == ("pipeline.cores" in values), simulated
    for path in (picture, ran):
        with open(path, encoding="utf-8") as file:
            assert "<svg" in file.read(400), path
    print("ok memory and pictures")


def main():
    choice = seed()
    with scratch() as folder:
        job = job_of(folder)
        refusals(folder, job)
        told(folder, job)
        with served(folder) as place:
            policies(folder, place, *bits(folder, place))
            shared(folder, place)
            resumed(folder, place)
        held_out(folder)
        disturbed(folder, choice)
        killed(folder, choice)


main()
