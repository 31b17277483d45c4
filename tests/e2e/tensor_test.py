# SPDX-License-Identifier: Apache-2.0
"""Tensor ranks: layers in parts that several processes share, rows of norms and residuals too. Losses, gradient norms and the
held-out loss have the same bits on 1, 2 and 4 tensor ranks, of any number of stages and replicas, whatever the schedule, the
data path and the policy, as long as a layer has the same number of parts. Two parts follow PyTorch's trajectories. Checkpoints
are whole, written by all who have a piece, and every grid goes on from those of others. A store that one tensor rank alone
loses costs no bits, and a rank that dies or hangs ends the run with 5, by its name."""
import json
import os
import signal
import struct
import time

from ballast import (CTL, GOLDEN, LONG, LONGEST_S, Run, assert_nothing_left, descendants, environment, losses, run_job, scratch,
                     seed, served, shared_memory_files, small_inline, state_of, write_job)

PARTS, LAYERS = 4, 8
MODELS = {
    "gpt2": {"init": None, "family": "gpt2", "layers": LAYERS, "hidden": 40, "heads": 4, "vocab": 301, "seq": 20},
    "llama": {"init": None, "family": "llama", "layers": LAYERS, "hidden": 32, "heads": 8, "kv_heads": 4, "ffn": 52,
              "vocab": 128, "seq": 16, "tied": True},
}


def job_of(folder, model, name="job.yaml", dtype="fp32", **more):
    return write_job(folder, name, model=MODELS[model], data={"validation": 0.2, "order": "shuffled"},
                     train={"steps": 3, "micro_batch": 1, "micro_batches": 8, "validate_every": 2, "dtype": dtype},
                     **{"parallel": {"tensor_parts": PARTS, "data_parts": 4}, **more})


def sets(**keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


def bits_of(report):
    return losses(report) + [event["loss"].hex() for event in report if event["event"] == "validation"]


def run_grid(folder, job, place, grid, *words, stores=False, **more):
    """grid: (tensor ranks, replicas, stages). Without a place the run starts processes of its own."""
    tensor, replicas, count = grid
    where = place(tensor * replicas * count, stores) if place else ["--local"]
    shape = sets(parallel__tensor=tensor, parallel__data=replicas, pipeline__stages=count)
    report, _ = run_job(folder, job, *where, *words, *shape, *sets(**more))
    return report


def same_bits(folder, place):
    """The first run of each model is on one rank; those over tcp have processes of their own."""
    ways = [("gpt2", "fp32", "1f1b", "shm", [(1, 1, 1), (2, 2, 2), (4, 1, 1)], [(2, 1, 1), (4, 1, 2), (4, 4, 1)]),
            ("gpt2", "fp32", "zb-v", "tcp", [(2, 1, 2)], [(4, 2, 2)]),
            ("gpt2", "bf16", "interleaved", "shm", [(1, 1, 1), (2, 1, 2)], [(2, 2, 2), (4, 1, 4)]),
            ("llama", "fp32", "zb-h1", "shm", [(1, 1, 1), (4, 1, 1)], [(2, 1, 2), (2, 2, 4)]),
            ("llama", "bf16", "zb-v", "tcp", [(1, 1, 1), (2, 1, 2)], [(1, 2, 2), (4, 1, 2)])]
    reference, runs = {}, 0
    for model, dtype, schedule, path, grids, more in ways:
        job = job_of(folder, model, dtype=dtype, pipeline={"schedule": schedule})
        for grid in grids + (more if LONG else []):
            report = run_grid(folder, job, place if path == "shm" else None, grid, balance__data_path=path,
                              pipeline__schedule="1f1b" if grid[2] == 1 else schedule)
            expected = reference.setdefault((model, dtype), bits_of(report))
            assert bits_of(report) == expected, f"{model}, {dtype}, {schedule}, {path}, {grid}"
            runs += 1
    print(f"ok {runs} runs: the same bits")
    return reference["gpt2", "fp32"]


def same_bits_balanced(folder, place, expected):
    """Every plane has stores of its own. Of 1f1b with 4 stages the first keeps four blocks."""
    seen = {}
    for policy, path, replicas, more in (("bpipe", "shm", 1, {"memory.slots": 3}),
                                         ("bpipe", "tcp", 2 if LONG else 1, {"memory.slots": 3}),
                                         ("drop", "shm", 1, {"memory.slots": 2}), ("auto", "shm", 1, {"memory.slots": 3}),
                                         ("none", "shm", 1, {"pipeline.recompute": "full"}),
                                         ("none", "shm", 1, {"pipeline.recompute": "attention"})):
        job = job_of(folder, "gpt2", balance={"policy": policy})
        report = run_grid(folder, job, place, (2, replicas, 2 if policy == "none" else 4), stores=policy != "none",
                          balance__data_path=path, **more)
        assert bits_of(report) == expected, f"{policy}, {path}, {more}"
        firsts = [stage for event in report if event["event"] == "step" for stage in event["stages"] if stage["stage"] == 0]
        assert len(firsts) == 3 * 2 * replicas, firsts
        seen[policy] = min(stage["evicted"] + stage["dropped"] for stage in firsts)
    assert min(seen["bpipe"], seen["drop"], seen["auto"]) > 0, seen
    print("ok the same bits with blocks parked and made again, every plane at its own stores")


def other_parts(folder, place, expected):
    """Only the order of additions differs."""
    whole = [float.fromhex(loss) for loss, _ in expected[:3]]
    for parts in (1, 2):
        job = job_of(folder, "gpt2", parallel={"tensor_parts": parts, "data_parts": 4})
        report = run_grid(folder, job, place, (parts, 1, 2))
        got = [float.fromhex(loss) for loss, _ in losses(report)]
        assert all(abs(a - b) <= 1e-4 * abs(a) for a, b in zip(whole, got)), f"{parts} parts: {got}, not {whole}"
        assert bits_of(report) != expected, f"{parts} parts: the parts make no difference"
    print("ok other numbers of parts are within rounding")


def trajectories_of_pytorch(folder, place):
    for model, tensor in (("gpt2", 4), ("llama", 2)):
        with open(f"{GOLDEN}/{model}/golden.json") as file:
            golden = json.load(file)
        job = write_job(folder, model={"init": f"{GOLDEN}/{model}", "seq": golden["seq"]},
                        data={"train": f"{GOLDEN}/{model}/tokens.bin"}, train=golden["train"])
        steps = [event for event in run_grid(folder, job, place, (tensor, 1, 2)) if event["event"] == "step"]
        for key, of_event in (("losses", "loss"), ("grad_norms", "grad_norm")):
            worst = max(abs(step[of_event] - value) / abs(value) for step, value in zip(steps, golden[key]))
            assert len(steps) == len(golden[key]) and worst <= 1e-4, f"{model}: {key} differ by {worst:.2g}"
    print("ok tensor ranks follow PyTorch's trajectories")


def tensors_of(folder, step, kind):
    """Of the safetensors files of one kind: name -> bytes, each once."""
    found = {}
    for name, data in state_of(folder, step).items():
        if not name.startswith(kind) or not name.endswith(".safetensors"):
            continue
        length, = struct.unpack("<Q", data[:8])
        for tensor, entry in json.loads(data[8:8 + length]).items():
            if tensor != "__metadata__":
                first, end = entry["data_offsets"]
                assert tensor not in found, f"{tensor} is saved twice"
                found[tensor] = data[8 + length + first:8 + length + end]
    return found


def made(events):
    return {event["step"]: (event["loss"].hex(), event["grad_norm"].hex()) for event in events if event["event"] == "step"}


def checkpoints(folder, place):
    """Written by one grid, gone on with from the middle by the next; tensors are the same bytes whoever wrote them."""
    every = [(1, 1, 1), (2, 1, 2), (4, 2, 1), (2, 2, 2)]
    for model, grids in (("gpt2", every if LONG else every[:3]), ("llama", every if LONG else every[:2])):
        whole = None
        for i, grid in enumerate(grids):
            at = os.path.join(folder, f"{model}-{i}")
            job = job_of(folder, model, checkpoint={"folder": at, "every": 2})
            report = run_grid(folder, job, place, grid)
            saved = [tensors_of(at, step, kind) for step in (2, 3) for kind in ("model", "optimizer")]
            whole = whole or (losses(report), saved)
            assert losses(report) == whole[0], f"{model}, {grid}: other bits"
            assert saved == whole[1], f"{model}, {grid}: another checkpoint"
            for name in os.listdir(os.path.join(at, "step-000003")):
                os.remove(os.path.join(at, "step-000003", name))
            os.rmdir(os.path.join(at, "step-000003"))
            other = grids[(i + 1) % len(grids)]
            report = run_grid(folder, job, place, other, "--resume")
            assert list(made(report).values()) == whole[0][2:], f"{model}: {other} went on from {grid} to other bits"
            assert [tensors_of(at, 3, kind) for kind in ("model", "optimizer")] == whole[1][2:]
    # A piece that is damaged is found by whoever reads the tensor.
    path = next(os.path.join(at, "step-000003", name) for name in sorted(os.listdir(os.path.join(at, "step-000003")))
                if name.startswith("optimizer"))
    with open(path, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    _, done = run_job(folder, job, "--local", "--resume", "--steps", "4", *sets(parallel__tensor=2), expect=2)
    assert "checksum" in done.stderr, done.stderr
    # Other parts go on, and are told that bits differ.
    job = job_of(folder, "gpt2", parallel={"tensor_parts": 2, "data_parts": 4}, checkpoint={"folder": os.path.join(folder, "gpt2-0")})
    _, done = run_job(folder, job, "--local", "--resume", "--steps", "4")
    assert "layers have 4 parts, the job has 2 (parallel.tensor_parts)" in done.stderr, done.stderr
    print("ok checkpoints are whole and the same for every grid, and every grid goes on from those of others")


def a_plane_loses_its_store(folder, choice):
    """The store of device 3 of one tensor rank is killed: what it had is made again by all tensor ranks of the stage."""
    shared = shared_memory_files()
    parts = {"model": small_inline(hidden=32, layers=4, seq=32), "data": {"train": f"{GOLDEN}/gpt2/tokens.bin"},
             "train": {"steps": 1000000, "micro_batch": 1, "micro_batches": 8}, "pipeline": {"stages": 4},
             "parallel": {"tensor": 2}}
    job = write_job(folder, **parts, memory={"slots": 3}, balance={"policy": "bpipe"})
    run = Run(folder, job, "--local")
    store, pids, kills = 3 * 2 + 1, set(), 0  # stage 3, tensor rank 1
    while kills < (3 if LONG else 1):
        before = run.wait_for(lambda steps: steps and all(stage["loaded"] for stage in steps[-1]["stages"][:2]),
                              "no blocks are parked")
        pids.update(descendants(run.pid))
        time.sleep(choice.uniform(0, 0.1))
        os.kill(before[-1]["stores"][store]["pid"], signal.SIGKILL)
        kills += 1
        run.wait_for(lambda steps: steps[-1]["stores"][store]["pid"] != before[-1]["stores"][store]["pid"] and
                     all(stage["loaded"] for stage in steps[-1]["stages"][:2]), "the store did not come back")
    pids.update(descendants(run.pid))
    run.end(130, signal.SIGINT)
    assert_nothing_left(folder, pids, shared)
    stages = [stage for step in run.steps() for stage in step["stages"]]
    lost = sum(stage["lost"] + stage["dropped"] for stage in stages)
    assert sum(stage["recomputed"] for stage in stages) == lost, "what was lost is counted where it was lost"
    for step in run.steps():
        for stage in step["stages"]:
            spent = stage["busy_seconds"] + stage["stall_seconds"]
            assert spent <= step["seconds"], f"{spent} s of {step['seconds']} are counted: {stage}"
    last = run.steps()[-1]["step"]
    alone = write_job(folder, "alone.yaml", **{**parts, "parallel": {"tensor_parts": 2}, "pipeline": {"stages": 1}})
    report, _ = run_job(folder, alone, "--local", "--steps", str(last), timeout=300)
    expected = losses(report)
    assert [bits for _, bits in sorted(made(run.steps()).items())] == expected[:last], "other bits"
    print(f"ok {kills} kills of one plane's store: {lost} blocks made again in {last} steps, the same bits")


def disturbed(folder, choice, number):
    shared = shared_memory_files()
    kept = os.path.join(folder, f"kept-{number}")
    parts = {"model": small_inline(hidden=32, layers=4, seq=32), "data": {"train": [os.path.abspath(__file__)], "format": "text"},
             "train": {"steps": 1000000, "micro_batch": 1, "micro_batches": 4}, "pipeline": {"stages": 2}}
    job = write_job(folder, **parts, parallel={"tensor": 2, "data": 2}, checkpoint={"folder": kept, "every": 3, "keep": 2})
    run = Run(folder, job, "--local")
    run.wait_for(lambda steps: len(steps) >= 5, "no steps")
    pids, rank = descendants(run.pid), choice.randrange(8)
    victim = run.steps()[-1]["stages"][rank]
    name = f"tensor rank {rank % 2} of stage {rank // 2 % 2} of replica {rank // 4}"
    time.sleep(choice.uniform(0, 0.2))
    begin = time.monotonic()
    os.kill(victim["pid"], number)
    try:
        message = run.end(5)
        seconds = time.monotonic() - begin
    finally:
        if number == signal.SIGSTOP:
            try:
                os.kill(victim["pid"], signal.SIGCONT)
            except ProcessLookupError:
                pass
        run.kill()
    assert name in message, f"{number.name}: does not name {name}:\n{message[-2000:]}"
    assert seconds < LONGEST_S, f"{number.name}: took {seconds:.1f} s"
    assert_nothing_left(folder, pids, shared)
    seen = made(run.steps())
    last = max(seen) + 3
    report, _ = run_job(folder, job, "--local", "--resume", "--steps", str(last), timeout=300)
    again = made(report)
    assert all(seen[step] == again[step] for step in seen.keys() & again.keys()), "steps made again have other bits"
    alone = write_job(folder, "alone.yaml", **{**parts, "parallel": {"tensor_parts": 2, "data_parts": 2}, "pipeline": {"stages": 1}})
    report, _ = run_job(folder, alone, "--local", "--steps", str(last), timeout=300)
    assert losses(report)[-3:] == [again[step] for step in range(last - 2, last + 1)], "it did not go on to the same bits"
    print(f"ok {name}, {number.name}: exit 5 after {seconds:.2f} s, and on to the same bits")


def main():
    choice = seed()
    with scratch() as folder, served(folder) as place:
        expected = same_bits(folder, place)
        same_bits_balanced(folder, place, expected)
        other_parts(folder, place, expected)
        trajectories_of_pytorch(folder, place)
        checkpoints(folder, place)
    with scratch() as folder:
        a_plane_loses_its_store(folder, choice)
        disturbed(folder, choice, choice.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV]))


if __name__ == "__main__":
    main()
