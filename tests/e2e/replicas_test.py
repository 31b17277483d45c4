# SPDX-License-Identifier: Apache-2.0
"""Replicas of a pipeline that share a step's micro-batches and the optimizer. Losses, gradient norms and the held-out loss
have the same bits for 1, 2 and 4 replicas of 1, 2 and 4 stages, whatever the schedule, the data path and the policy, as long
as the gradient has the same number of parts; other numbers of parts are within rounding. A checkpoint is whole, each tensor
written by the one rank that updates it, and any other number of replicas and stages goes on from it to the same bits. The
report says which replica a line is of. A rank that is killed is named with its replica, and nothing is left of the run."""
import contextlib
import json
import os
import signal
import struct
import subprocess
import time

from ballast import (CTL, GOLDEN, LONG, Run, Service, assert_nothing_left, descendants, environment, losses, on, run_job, scratch, served,
                     shared_memory_files, small_inline, stages, state_of, wait_until, write_job)

PARTS, LAYERS = 4, 8
MODELS = {
    "gpt2": {"init": None, "family": "gpt2", "layers": LAYERS, "hidden": 32, "heads": 4, "vocab": 128, "seq": 16},
    "llama": {"init": None, "family": "llama", "layers": LAYERS, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48,
              "vocab": 128, "seq": 16},
}


def job_of(folder, model, name="job.yaml", dtype="fp32", **more):
    return write_job(folder, name, model=MODELS[model], data={"validation": 0.2, "order": "shuffled"},
                     train={"steps": 3, "micro_batch": 1, "micro_batches": 16, "validate_every": 2, "dtype": dtype},
                     **{"parallel": {"data_parts": PARTS}, **more})


def sets(**keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


def bits_of(report):
    return losses(report) + [event["loss"].hex() for event in report if event["event"] == "validation"]


def check_coords(report, replicas, count):
    for event in report:
        if event["event"] != "step":
            continue
        coords = [(stage.get("data", 0), stage["stage"]) for stage in event["stages"]]
        assert coords == [(r, s) for r in range(replicas) for s in range(count)], coords
        assert all(("data" in stage) == (replicas > 1) for stage in event["stages"]), event


def same_bits(folder, place):
    """(replicas, stages); the first run of each model is on one rank. Those over tcp have processes of their own."""
    every = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2), (2, 4)]
    ways = [("gpt2", "fp32", "1f1b", "shm", [(1, 1), (4, 1), (1, 2), (2, 2)]), ("gpt2", "fp32", "zb-v", "tcp", [(2, 2)]),
            ("gpt2", "bf16", "interleaved", "shm", [(1, 1), (4, 2)]), ("llama", "fp32", "zb-h1", "shm", [(1, 1), (2, 4)]),
            ("llama", "bf16", "zb-v", "shm", [(1, 1), (2, 2)])]
    reference, runs = {}, 0
    for model, dtype, schedule, path, grid in ways:
        for replicas, count in every if LONG else grid:
            job = job_of(folder, model, dtype=dtype, pipeline={"stages": count, "schedule": schedule})
            where = place(replicas * count) if path == "shm" else ["--local"]
            report, _ = run_job(folder, job, *where, *sets(parallel__data=replicas, balance__data_path=path))
            expected = reference.setdefault((model, dtype), bits_of(report))
            assert bits_of(report) == expected, f"{model}, {dtype}, {schedule}, {path}, {replicas} x {count}"
            check_coords(report, replicas, count)
            runs += 1
    print(f"ok {runs} runs: the same bits")
    return reference["gpt2", "fp32"]


def same_bits_balanced(folder, place, expected):
    """Each replica has stores of its own. Of 1f1b with 4 stages the first keeps four blocks."""
    seen = {}
    for policy, count, more in (("bpipe", 4, {"memory.slots": 3}), ("drop", 4, {"memory.slots": 3}),
                                ("auto", 4, {"memory.slots": 3}), ("none", 2, {"pipeline.recompute": "full"}),
                                ("none", 2, {"pipeline.recompute": "attention"}), ("none", 2, {"train.post_validation": "true"})):
        job = job_of(folder, "gpt2", pipeline={"stages": count}, balance={"policy": policy})
        report, _ = run_job(folder, job, *place(2 * count, stores=policy != "none"), *sets(parallel__data=2, **more))
        assert bits_of(report) == expected, f"{policy}, {more}"
        firsts = [stage for event in report if event["event"] == "step" for stage in event["stages"] if stage["stage"] == 0]
        seen[policy] = [stage["evicted"] + stage["dropped"] for stage in firsts]
        if policy == "bpipe":
            assert all(stage["evicted"] > 0 and stage["loaded"] == stage["evicted"] for stage in firsts), firsts
            stores = [store for event in report if event["event"] == "step" for store in event["stores"]]
            assert {(store["store"], store["data"], store["device"]) for store in stores} == {
                (rank, *divmod(rank, 4)) for rank in range(8)}, stores
            assert all(store["peak_leased"] == store["lent_slots"] == (0 if store["device"] < 3 else 2) for store in stores)
    assert min(seen["bpipe"]) > 0 and min(seen["drop"]) > 0, seen
    print("ok the same bits with blocks parked and made again, every replica at its own stores")


def other_parts(folder, place, expected):
    """Without as many parts only the order of additions differs, and clipping makes little of that."""
    whole = [float.fromhex(loss) for loss, _ in expected[:3]]
    for parts, replicas in ((1, 1), (16, 2), *(((2, 2), (8, 4)) if LONG else ())):
        report, _ = run_job(folder, job_of(folder, "gpt2", parallel={"data_parts": parts, "data": replicas}),
                            *place(2 * replicas))
        got = [float.fromhex(loss) for loss, _ in losses(report)]
        assert all(abs(a - b) <= 1e-4 * abs(a) for a, b in zip(whole, got)), f"{parts} parts: {got}, not {whole}"
        assert bits_of(report) != expected, f"{parts} parts: the parts make no difference"
    job = job_of(folder, "gpt2", parallel={"data": 3})
    reports = [run_job(folder, job, *place(3 * count), *sets(pipeline__stages=count, train__micro_batches=12))[0]
               for count in (1, 2)]
    assert bits_of(reports[0]) == bits_of(reports[1]), "3 replicas"
    print("ok other numbers of parts are within rounding, three replicas have the bits of three replicas")


def trajectories_of_pytorch(folder, place):
    """Three micro-batches a step on three replicas, against what PyTorch made of the same weights and tokens."""
    for model in ("gpt2", "llama"):
        with open(f"{GOLDEN}/{model}/golden.json") as file:
            golden = json.load(file)
        job = write_job(folder, model={"init": f"{GOLDEN}/{model}", "seq": golden["seq"]},
                        data={"train": f"{GOLDEN}/{model}/tokens.bin"}, train=golden["train"], parallel={"data": 3})
        report, _ = run_job(folder, job, *place(6))
        steps = [event for event in report if event["event"] == "step"]
        for key, of_event in (("losses", "loss"), ("grad_norms", "grad_norm")):
            worst = max(abs(step[of_event] - value) / abs(value) for step, value in zip(steps, golden[key]))
            assert len(steps) == len(golden[key]) and worst <= 1e-4, f"{model}: {key} differ by {worst:.2g}"
    print("ok three replicas follow PyTorch's trajectories")


def tensors_of(folder, step, kind):
    """Of the safetensors files of one kind: name -> bytes, each once."""
    found = {}
    for name, data in state_of(folder, step).items():
        if not name.startswith(kind):
            continue
        length, = struct.unpack("<Q", data[:8])
        for tensor, entry in json.loads(data[8:8 + length]).items():
            if tensor != "__metadata__":
                first, end = entry["data_offsets"]
                assert tensor not in found, f"{tensor} is saved twice"
                found[tensor] = data[8 + length + first:8 + length + end]
    return found


def checkpoints(folder, place):
    """Written by (replicas, stages), gone on with from the middle by others."""
    for model, dtype in (("gpt2", "fp32"), ("llama", "fp32"), ("gpt2", "bf16"), *[("llama", "bf16")] * LONG):
        whole, kept = None, {}
        for replicas, count in ((1, 1), (2, 2), *([(4, 1)] if LONG or model == "gpt2" else [])):
            at = os.path.join(folder, f"{model}-{dtype}-{replicas}-{count}")
            job = job_of(folder, model, dtype=dtype, pipeline={"stages": count}, checkpoint={"folder": at, "every": 2})
            report, _ = run_job(folder, job, *place(replicas * count), *sets(parallel__data=replicas))
            saved = [tensors_of(at, step, kind) for step in (2, 3) for kind in ("model", "optimizer")]
            whole = whole or (losses(report), saved)
            assert losses(report) == whole[0] and saved == whole[1], f"{model}, {dtype}, {replicas} x {count}: another checkpoint"
            kept[replicas, count] = at
        for (replicas, count), at in kept.items():
            other = {(1, 1): (2, 2), (2, 2): (1, 1), (4, 1): (2, 4)}[replicas, count]
            for path in os.listdir(os.path.join(at, "step-000003")):
                os.remove(os.path.join(at, "step-000003", path))
            os.rmdir(os.path.join(at, "step-000003"))
            job = job_of(folder, model, dtype=dtype, pipeline={"stages": other[1]}, checkpoint={"folder": at, "every": 2})
            report, _ = run_job(folder, job, *place(other[0] * other[1]), "--resume", *sets(parallel__data=other[0]))
            steps = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
            assert steps == whole[0][2:], f"{model}, {dtype}: {other} went on from {replicas} x {count} to other bits"
            assert [tensors_of(at, 3, kind) for kind in ("model", "optimizer")] == whole[1][2:]
    print("ok checkpoints are whole and the same for every grid, and every grid goes on from those of others")


def more_replicas_than_tensors(folder):
    """Each updates and saves a few rows of a matrix, or next to nothing."""
    seen = []
    for replicas in (1, 16):
        at = os.path.join(folder, f"many-{replicas}")
        job = write_job(folder, model={**MODELS["llama"], "layers": 1}, pipeline={"stages": 1},
                        train={"steps": 2, "micro_batch": 1, "micro_batches": 16},
                        parallel={"data": replicas, "data_parts": 16}, checkpoint={"folder": at, "every": 1})
        report, _ = run_job(folder, job, "--local")
        seen.append((losses(report), [tensors_of(at, 2, kind) for kind in ("model", "optimizer")]))
    assert seen[0] == seen[1] and len(seen[0][1][0]) < 16, len(seen[0][1][0])
    print(f"ok 16 replicas of {len(seen[0][1][0])} tensors")


def services(folder, expected):
    with stages(folder, 4) as ranks:
        stores = [Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64 MiB") for _ in ranks]
        try:
            job = job_of(folder, "gpt2", pipeline={"stages": 2}, parallel={"data": 2, "data_parts": PARTS},
                         balance={"policy": "cap", "cap": 2})
            for path in ("shm", "tcp"):
                report, _ = run_job(folder, job, *on(ranks, stores), *sets(balance__data_path=path))
                assert bits_of(report) == expected, f"services, {path}"
                check_coords(report, 2, 2)
            seen = told(folder, "preflight", job, *on(ranks, stores))
            assert all(f"stage {s} of replica {r}" in seen for r in (0, 1) for s in (0, 1)), seen
            assert "stage 0 of replica 1 to stage 1 of replica 1" in seen and "failed" not in seen, seen
            two = on(ranks[:2])
            _, done = run_job(folder, job, *two, expect=2)
            assert "services.stages: names 2; 2 replicas of 2 stages are 4 ranks" in done.stderr, done.stderr
        finally:
            for store in stores:
                store.kill(signal.SIGKILL)
    print("ok separate services, shm and tcp")


def a_rank_is_killed(folder):
    shared = shared_memory_files()
    job = write_job(folder, model=small_inline(), data={"train": [__file__], "format": "text"},
                    train={"steps": 100000, "micro_batch": 2, "micro_batches": 8}, pipeline={"stages": 2},
                    parallel={"data": 2})
    for rank, number in ((0, signal.SIGKILL), (3, signal.SIGKILL), (2, signal.SIGSEGV)):
        run = Run(folder, job, "--local")
        run.wait_for(lambda steps: len(steps) >= 2, "no steps")
        pids, victim = descendants(run.pid), run.steps()[-1]["stages"][rank]
        assert (victim["data"], victim["stage"]) == divmod(rank, 2), victim
        begin = time.monotonic()
        os.kill(victim["pid"], number)
        message = run.end(5)
        assert time.monotonic() - begin < 30, "it took too long"
        assert f"stage {victim['stage']} of replica {victim['data']}" in message, message
        assert_nothing_left(folder, pids, shared)
    print("ok a rank that is killed is named: exit 5, nothing left")


def told(folder, *words):
    done = subprocess.run([CTL, *words], env=environment(folder), stdin=subprocess.DEVNULL, text=True, capture_output=True,
                          timeout=60)
    assert done.returncode == 0 or words[0] == "doctor", f"{words}: {done.stderr}"
    return done.stdout + done.stderr


def a_rank_hangs(folder):
    """The policy changes on all ranks at one step; then one hangs: doctor says who waits for it, and the run ends in time."""
    shared = shared_memory_files()
    job = write_job(folder, model=small_inline(), data={"train": [__file__], "format": "text"},
                    train={"steps": 100000, "micro_batch": 2, "micro_batches": 8}, pipeline={"stages": 2},
                    parallel={"data": 2}, balance={"policy": "none"})
    run = Run(folder, job, "--local")
    run.wait_for(lambda steps: len(steps) >= 2, "no steps")
    told(folder, "policy", "set", "drop", "1", "--wait")
    steps = run.wait_for(lambda steps: steps[-1]["policy_version"] == 2, "the policy did not change")
    changed = [all(stage["dropped"] > 0 for stage in step["stages"] if stage["stage"] == 0)
               for step in steps if step["policy_version"] == 2]
    assert changed and all(changed), "some replica did not follow"
    seen = wait_until(lambda: [stage for stage in json.loads(told(folder, "stages", "-o", "json")) if stage["paths"]][3:] and
                      json.loads(told(folder, "stages", "-o", "json")), 30, "no paths are told")
    paths = {(stage["data"], stage["stage"]): sorted((path["data"], path["stage"]) for path in stage["paths"])
             for stage in seen}
    assert paths == {(r, s): sorted([(r, 1 - s), (1 - r, s)]) for r in (0, 1) for s in (0, 1)}, paths
    assert "1 of replica 0: " in told(folder, "stages", "-o", "wide")
    healthy = told(folder, "health")
    assert all(f"stage-{s}-of-replica-{r} " in healthy for r in (0, 1) for s in (0, 1)), healthy
    pids, victim = descendants(run.pid), run.steps()[-1]["stages"][3]
    os.kill(victim["pid"], signal.SIGSTOP)
    begin = time.monotonic()
    try:
        waits, name = [told(folder, "doctor")], "stage 1 of replica 1"
        # It may have been about to commit: then nobody else waits. It may have the only core.
        named = [f"from {name}", f"to {name}", f"{name}: Commit", f"core, which {name} has"]
        while not any(words in waits[-1] for words in named) and run.process.poll() is None:
            waits.append(told(folder, "doctor"))
        assert any(words in text for text in waits for words in named), waits
        message = run.end(5)
        assert time.monotonic() - begin < 30, "it took too long"
        assert "stage 1 of replica 1" in message and "is gone: no answer" in message, message
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim["pid"], signal.SIGCONT)
        run.kill()
    assert_nothing_left(folder, pids, shared)
    print("ok a policy changes on all ranks; a rank that hangs is named, by doctor and by the end of the run")


def main():
    assert os.path.isdir(GOLDEN)
    with scratch() as folder:
        with served(folder) as place:
            expected = same_bits(folder, place)
            same_bits_balanced(folder, place, expected)
            other_parts(folder, place, expected)
            trajectories_of_pytorch(folder, place)
            checkpoints(folder, place)
        more_replicas_than_tensors(folder)
        services(folder, expected)
    with scratch() as folder:
        a_rank_is_killed(folder)
        a_rank_hangs(folder)


if __name__ == "__main__":
    main()
