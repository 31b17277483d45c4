# SPDX-License-Identifier: Apache-2.0
"""A stage that computes on a device which is told ahead and whose memory the CPU cannot touch does what a stage on the
host does: the same bits for every schedule, data path, eviction, kind of recomputation, validation and resumed run, of sequences
in slices, wherever its optimizer's state lies. The device is not there (tests/late): its modules take the place of the CUDA back end's. And what is
said where there is none."""
import json
import os
import signal
import subprocess
import time

from ballast import (CTL, LATE, LONG, ON_DEVICE, Run, environment, losses, on_late_device, read_report, run_job, served, stages_of,
                     state_of, write_job)


def compare(folder, what, job, where=("--local",)):
    """The run on the host and on the device; the report of the latter."""
    expected, _ = run_job(folder, job, *where)
    report, _ = run_job(folder, job, *where, *ON_DEVICE)
    assert losses(report) == losses(expected), f"{what}:\n {losses(report)}\n {losses(expected)}"
    print(f"ok {what}")
    return report


def same_bits(folder, place):
    inline = {"init": None, "family": "gpt2", "layers": 8, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    train = {"steps": 3, "micro_batch": 1, "micro_batches": 8, "validate_every": 2}
    held_out = {"validation": 0.1}
    for count, schedule, path, more in ((2, "1f1b", "shm", {}), (3, "gpipe", "tcp", {}), (2, "zb-v", "shm", {}),
                                        (4, "interleaved", "shm", {}), (2, "1f1b", "shm", {"recompute": "full"}),
                                        (2, "zb-h1", "tcp", {"recompute": "attention", "attention": "flash"})):
        job = write_job(folder, model=inline, train=train, data=held_out, balance={"data_path": path},
                        pipeline={"stages": count, "schedule": schedule, **more})
        report = compare(folder, f"{count} stages, {schedule}, {path} {more}", job, place(count))
        assert any(event["event"] != "step" for event in report), "validation ran"
    llama = {**inline, "family": "llama", "ffn": 64, "tied": False}
    compare(folder, "llama, bf16", write_job(folder, model=llama, train={**train, "dtype": "bf16"},
                                             data=held_out, pipeline={"stages": 2}), place(2))


def layers_in_parts(folder, place):
    """All parts of a layer on one device, whose vocabularies have 76, 76, 76 and 73 tokens, or 64 and 37."""
    gpt2 = {"init": None, "family": "gpt2", "layers": 8, "hidden": 40, "heads": 4, "vocab": 301, "seq": 32}
    llama = {**gpt2, "family": "llama", "ffn": 52, "kv_heads": 2, "vocab": 101, "tied": False}
    train = {"steps": 3, "micro_batch": 1, "micro_batches": 8, "validate_every": 2}
    for model, parts, dtype, pipeline, policy in (
            (gpt2, 4, "fp32", {"stages": 4, "schedule": "1f1b"}, "bpipe"),
            (gpt2, 2, "bf16", {"stages": 2, "schedule": "zb-v", "recompute": "attention"}, "none"),
            (llama, 2, "bf16", {"stages": 2, "schedule": "1f1b", "recompute": "full"}, "none")):
        job = write_job(folder, model=model, train={**train, "dtype": dtype}, data={"validation": 0.1}, pipeline=pipeline,
                        parallel={"tensor_parts": parts}, balance={"policy": policy})
        report = compare(folder, f"{parts} parts, {model['family']}, {dtype}, {pipeline}, {policy}", job,
                         place(pipeline["stages"]) if policy == "none" else ["--local"])
        evicted = max(stage["evicted"] for stage in stages_of(report))
        assert (evicted > 0) == (policy == "bpipe"), evicted


def device_to_device(folder):
    """Blocks go from device to device (cuda-ipc), with stores on the device, which are killed; or they are made to go
    through memory of the host: the same bits."""
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    job = write_job(folder, model=inline, train={"steps": 4, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 4}, balance={"policy": "bpipe"})
    expected, _ = run_job(folder, job, "--local")
    for what in ("balance.require=cuda-ipc", "balance.data_path=shm"):
        report, _ = run_job(folder, job, "--local", *ON_DEVICE, "--set", what)
        assert losses(report) == losses(expected), f"{what}:\n {losses(report)}\n {losses(expected)}"
        stage = report[-1]["stages"][0]
        assert stage["evicted"] > 0 and stage["loaded"] == stage["evicted"] and stage["recomputed"] == 0, f"{what}: {stage}"
        assert stage["peak_slots"] == 3, f"{what}: {stage}"
        print(f"ok evictions, {what}")
    _, done = run_job(folder, job, "--local", "--set", "balance.require=cuda-ipc", expect=2)
    assert "it needs pipeline.device cuda" in done.stderr, done.stderr


def memory_of_stages(folder, job, *more):
    """Bytes of every stage by tag, while the job runs."""
    run = Run(folder, job, "--local", "--steps", "1000000", *ON_DEVICE, *more)
    try:
        run.wait_for(lambda steps: len(steps) >= 1, "no step ended")
        for _ in range(1200):
            done = subprocess.run([CTL, "stages", "-o", "json", "--timeout", "60"], env=environment(folder), text=True,
                                  capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr
            stages = [stage["memory"] for stage in json.loads(done.stdout)]
            if all(stages):
                return stages
            time.sleep(0.05)
        raise AssertionError("the driver does not know what its stages hold")
    finally:
        os.kill(run.pid, signal.SIGTERM)
        run.process.wait(60)


def twins_of_slots(folder):
    """Slots and edge buffers of a device have twins in memory of the host only where blocks and tensors go through it."""
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    job = write_job(folder, model=inline, train={"steps": 4, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 4}, balance={"policy": "bpipe"})
    nothing = memory_of_stages(folder, job, "--set", "balance.policy=none", "--set", "balance.data_path=shm")
    direct = memory_of_stages(folder, job, "--set", "balance.data_path=cuda-ipc")
    through = memory_of_stages(folder, job, "--set", "balance.data_path=shm")
    for stage in (0, 1):
        edges = nothing[stage]["staging"]
        parks = through[stage]["staging"] > edges
        assert direct[stage]["staging"] == 0 and edges > 0, (stage, nothing[stage], direct[stage])
        assert parks == (stage == 0) and (not parks or through[stage]["staging"] == edges + through[stage]["slots"]), \
            (stage, nothing[stage], through[stage])
    print("ok twins of slots only where they are needed")


def tiers_of_host_store(folder):
    done = subprocess.run([CTL, "stores", "-o", "json"], env=environment(folder), text=True, capture_output=True, timeout=120,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    host = json.loads(done.stdout)[-1]
    assert host["of"] == "host 0" and host["device"] not in ("", "host"), host
    return host["tiers"]


def host_memory(folder):
    """Offload: blocks of devices go to pinned memory of the host, the second tier of a store that has next to nothing of the
    device, over cuda-ipc; or through shared memory. The same bits; beside peers, too, and when the store is killed."""
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    job = write_job(folder, model=inline, train={"steps": 4, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4})
    expected, _ = run_job(folder, job, "--local")
    few = ("--set", "memory.slots=2", "--set", "balance.mode=fewest", "--set", "balance.host=64MiB")
    for policy, what, devices, host in (("offload", "balance.require=cuda-ipc", 0, 5), ("offload", "balance.data_path=shm", 0, 5),
                                        ("bpipe", "balance.require=cuda-ipc", 1, 4),
                                        *([("offload", "balance.data_path=tcp", 0, 5)] if LONG else [])):
        report, _ = run_job(folder, job, "--local", *ON_DEVICE, *few, "--set", f"balance.policy={policy}", "--set", what)
        assert losses(report) == losses(expected), f"{policy}, {what}:\n {losses(report)}\n {losses(expected)}"
        for event in (event for event in report if event["event"] == "step"):
            assert all(stage["recomputed"] == 0 and stage["loaded"] == stage["evicted"] for stage in event["stages"]), event
            assert [stage["evicted"] > 0 for stage in event["stages"]] == [True, True, False, False], event["stages"]
            lent = [store["lent_slots"] for store in event["stores"]]
            assert (sum(lent[:4]), lent[4]) == (devices, host) and event["stores"][4]["peak_leased"] > 0, event["stores"]
        print(f"ok {policy} with host, {what}")
    run = Run(folder, job, "--local", *ON_DEVICE, *few, "--set", "balance.policy=offload", "--set", "train.steps=1000000")
    try:
        steps = run.wait_for(lambda s: s and s[-1]["stages"][0]["loaded"] > 0, "nothing is parked")
        tiers = tiers_of_host_store(folder)
        assert tiers["host"]["held_bytes"] > 0 and tiers["host"]["capacity_bytes"] == 2 * 64 << 20, tiers  # of two plans
        assert tiers["device"]["capacity_bytes"] == 65536, tiers  # one block of this small model, none of a larger one
        os.kill(steps[-1]["stores"][4]["pid"], signal.SIGKILL)
        killed = steps[-1]["stores"][4]["pid"]
        run.wait_for(lambda s: s[-1]["stores"][4]["pid"] != killed and s[-1]["stages"][0]["loaded"] > 0, "it is not back")
    finally:
        run.end(130, signal.SIGINT)
    steps = run.steps()
    expected, _ = run_job(folder, job, "--local", "--steps", str(len(steps)), timeout=600)
    assert losses(steps) == losses(expected), "other losses"
    print(f"ok the host store of devices lends pinned memory, and was killed: {len(steps)} steps")


def slices(folder, place):
    """Sequences in slices: the bits of the host, whose slices have those of one stage (slices_test.py)."""
    gpt2 = {"init": None, "family": "gpt2", "layers": 8, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    llama = {**gpt2, "family": "llama", "ffn": 64, "tied": False, "kv_heads": 1}
    train = {"steps": 3, "micro_batch": 2, "micro_batches": 4, "validate_every": 2}
    short = ((llama, 2, "zb-h1", {"attention": "flash", "recompute": "attention"}), (gpt2, 4, "interleaved", {"recompute": "full"}))
    every = [(model, count, schedule, more) for model in (gpt2, llama) for count in (2, 4)
             for schedule, more in (("seq1f1b", {}), ("zb-h1", {"attention": "flash"}), ("interleaved", {}), ("zb-v", {}),
                                    ("gpipe", {"attention": "flash"}), ("seq1f1b", {"recompute": "full"}),
                                    ("zb-h1", {"recompute": "attention"}))]
    for model, count, schedule, more in every if LONG else short:
        job = write_job(folder, model=model, train=train, data={"validation": 0.1}, balance={"data_path": "shm"},
                        pipeline={"stages": 4, "schedule": schedule, "slices": count, **more})
        compare(folder, f"{model['family']} in {count} slices, {schedule} {more}", job, place(4))
    for words in (("bpipe",), ("drop", "memory.slots=3"), ("offload", "memory.slots=2", "balance.host=64MiB"),
                  ("auto", "memory.slots=3", "balance.host=64MiB")) if LONG else ():
        settings = [word for value in (f"balance.policy={words[0]}", *words[1:]) for word in ("--set", value)]
        job = write_job(folder, model=llama, train={**train, "dtype": "bf16"},
                        pipeline={"stages": 4, "schedule": "seq1f1b", "slices": 4})
        expected, _ = run_job(folder, job, "--local", "--set", "pipeline.stages=1")
        for path in ("cuda-ipc", "shm"):
            report, _ = run_job(folder, job, "--local", *ON_DEVICE, *settings, "--set", f"balance.data_path={path}")
            assert losses(report) == losses(expected), f"{words}, {path}:\n {losses(report)}\n {losses(expected)}"
            assert any(stage["loaded"] or stage["recomputed"] for stage in stages_of(report)), (words, path)
        print(f"ok slices, {words[0]}")
    for parts, ranks in (("tensor_parts", "tensor"), ("data_parts", "data")) if LONG else ():
        job = write_job(folder, model=gpt2, train=train, pipeline={"stages": 2, "schedule": "seq1f1b", "slices": 4}, parallel={parts: 2})
        expected, _ = run_job(folder, job, "--local", "--set", "pipeline.stages=1")
        report, _ = run_job(folder, job, "--local", "--nccl-shared-gpu", *ON_DEVICE, "--set", f"parallel.{ranks}=2")
        assert losses(report) == losses(expected), f"{ranks}:\n {losses(report)}\n {losses(expected)}"
        print(f"ok slices on two {ranks} ranks")


def run_with_a_kill(folder, job):
    """The report of a run on the device whose store of device 3 is killed once it has blocks; how many were made again."""
    run = Run(folder, job, "--local", *ON_DEVICE)
    steps = run.wait_for(lambda steps: any(stage["loaded"] for stage in stages_of(steps)), "no step that parks blocks")
    os.kill(steps[-1]["stores"][3]["pid"], signal.SIGKILL)
    run.end(0)
    report = read_report(run.report)
    for stage in stages_of(report):
        assert stage["recomputed"] == stage["lost"] + stage["dropped"], stage
    return report, sum(stage["recomputed"] for stage in stages_of(report))


def a_store_is_killed(folder):
    """Blocks that are lost are made again, and have the checksums with which they left; also in slices, which leave parts of their
    slots unused."""
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    for pipeline in ({}, {"schedule": "seq1f1b", "slices": 4}):
        job = write_job(folder, model=inline, train={"steps": 15, "micro_batch": 1, "micro_batches": 8},
                        pipeline={"stages": 4, **pipeline}, balance={"policy": "bpipe"})
        expected, _ = run_job(folder, job, "--local")
        killed = kills = 0
        while killed == 0 and kills < 5:  # it may have held nothing at that moment
            kills += 1
            report, killed = run_with_a_kill(folder, job)
            assert losses(report) == losses(expected), f"{losses(report)}\n {losses(expected)}"
        assert killed > 0, f"{kills} stores were killed and no block was made again"
        print(f"ok a store on the device was killed: {killed} blocks were made again {pipeline}")


def checkpoints(folder, place):
    """A checkpoint written from a device is that of the host, and both go on from it alike, in layers of parts too."""
    for parts in (1, 2):
        reference, _ = run_job(folder, write_job(folder, parallel={"tensor_parts": parts}), *place(2))
        for writer, reader in ((ON_DEVICE, ()), ((), ON_DEVICE)):
            kept = os.path.join(folder, f"kept{len(writer)}-{parts}")
            job = write_job(folder, parallel={"tensor_parts": parts}, checkpoint={"folder": kept, "every": 3})
            run_job(folder, job, *place(2), "--steps", "3", *writer)
            report, _ = run_job(folder, job, *place(2), "--resume", *reader)
            steps = [event for event in report if event["event"] == "step"]
            bits = [(event["loss"].hex(), event["grad_norm"].hex()) for event in steps]
            assert bits == losses(reference)[3:], f"{parts} parts: {bits} {losses(reference)[3:]}"
    print("ok checkpoints from and to a device")


def plan_with_it(folder, job):
    """The job that `plan` writes runs; nothing is planned that saves nothing, or whose time no profile has."""
    path, words = os.path.join(folder, "planned.yaml"), [CTL, "plan", job, "-o", "json", "--schedule", "1f1b"]
    on_host = [*words, "--optimizer-memory", "host"]
    done = subprocess.run([*on_host, "--hardware", "a100-80g", "--write", path], text=True, capture_output=True,
                          timeout=120, env=environment(folder))
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout)["best"]
    assert best["memory"]["optimizer"] == 0 and best["host_memory_bytes"] == best["memory"]["optimizer-host"], best
    assert best["offload"]["update_seconds"] > 0 and best["offload"]["link_bytes"] > 0, best
    run_job(folder, path, "--local", "--set", "train.steps=1")
    done = subprocess.run(on_host, text=True, capture_output=True, timeout=120, env=environment(folder))
    assert done.returncode == 2 and "--optimizer-memory host: it saves nothing" in done.stderr, done.stderr


def optimizer_on_the_host(folder, place):
    """With the optimizer's state in memory of the host: the same bits, also where stages go ahead of commits and take steps
    back, the same checkpoints, and either goes on from the other's."""
    inline = {"init": None, "family": "llama", "layers": 4, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq": 32}
    on_host = ("--set", "train.optimizer_memory=host")
    for dtype in ("fp32", "bf16"):
        train = {"steps": 6, "dtype": dtype, "clip": 0.5}
        expected, _ = run_job(folder, write_job(folder, model=inline, train=train), *place(2))
        kept = []
        for which, words in (("device", ()), ("host", on_host)):
            kept.append(os.path.join(folder, f"{dtype}-{which}"))
            job = write_job(folder, model=inline, train=train, checkpoint={"folder": kept[-1], "every": 3})
            report, _ = run_job(folder, job, *place(2), "--steps", "3", *ON_DEVICE, *words)
            assert losses(report) == losses(expected)[:3], f"{dtype}, {which}: {losses(report)}\n {losses(expected)}"
        assert state_of(kept[0], 3) == state_of(kept[1], 3), f"{dtype}: the two checkpoints differ"
        if dtype == "fp32" and not LONG:
            continue  # the rest is the same for either
        for saved, words in ((kept[0], on_host), (kept[1], ())):  # each goes on with the other
            job = write_job(folder, model=inline, train=train, checkpoint={"folder": saved, "every": 3})
            report, _ = run_job(folder, job, *place(2), "--resume", *ON_DEVICE, *words)
            bits = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
            assert bits == losses(expected)[3:], f"{dtype}, {words}: {bits}\n {losses(expected)[3:]}"
        assert state_of(kept[0], 6) == state_of(kept[1], 6), f"{dtype}: the two checkpoints differ at the end"
        ahead = write_job(folder, model=inline, train={**train, "post_validation": True})
        report, _ = run_job(folder, ahead, *place(2), *ON_DEVICE, *on_host)
        assert losses(report) == losses(expected), f"{dtype}, ahead: {losses(report)}\n {losses(expected)}"
    job = write_job(folder, model=inline)
    _, done = run_job(folder, job, "--local", *on_host, expect=2)
    assert "train.optimizer_memory: host saves nothing where the device is the host itself" in done.stderr, done.stderr
    plan_with_it(folder, job)
    print("ok optimizer on the host")


def memory_beside_the_plan(folder):
    """What libraries and communicators take once everything is planned is told, and a plan that takes more must fit beside it."""
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 32, "heads": 2, "vocab": 128, "seq": 32}
    job = write_job(folder, model=inline, train={"steps": 1000000, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 4}, balance={"policy": "bpipe"})
    for taken, whole, code in (("100", "0", 0), ("8192", "0", 8), ("8192", "1", 0)):
        os.environ["LATE_BESIDE_MIB"], os.environ["LATE_WHOLE_RANGES"] = taken, whole
        run = Run(folder, job, "--local", "--verbose", *ON_DEVICE)
        del os.environ["LATE_BESIDE_MIB"], os.environ["LATE_WHOLE_RANGES"]
        try:
            run.wait_for(bool, "no step was made")
            done = subprocess.run([CTL, "policy", "set", "none", "--wait"], env=environment(folder), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        finally:
            said = run.end(130, signal.SIGINT)
        assert done.returncode == code, (done.returncode, done.stderr)
        assert said.count("taken in addition by libraries, communicators") == 4, said
        if taken == "100":
            assert said.count(" planned and taken; 100 MiB taken in addition ") == 4, said
        elif code != 0:
            for words in ("more of device memory, 0 B are free", "communicators and other processes have taken 8.00 GiB"):
                assert words in done.stderr, done.stderr
    print("ok memory beside the plan")


def refusals(folder):
    job = write_job(folder)
    os.environ["BALLAST_MODULES"] = folder
    _, done = run_job(folder, job, "--local", *ON_DEVICE, expect=2)
    words = f"libballast-cuda.so is not in {folder}, which BALLAST_MODULES names"
    assert "pipeline.device" in done.stderr and words in done.stderr, done.stderr
    os.environ["BALLAST_MODULES"] = LATE
    huge = {"init": None, "family": "gpt2", "layers": 2, "hidden": 16384, "heads": 128, "vocab": 128, "seq": 32}
    _, done = run_job(folder, write_job(folder, model=huge), "--local", *ON_DEVICE, expect=8)
    for word in ("of device memory (slots ", "weights ", "optimizer ", "8.00 GiB of 8.00 GiB are free"):
        assert word in done.stderr, f"{word}: {done.stderr}"
    print("ok refusals")


def at_one_place(folder):
    """On services that stay, one run on the host and on the device after the other."""
    with served(folder) as place:
        for check in (same_bits, slices, layers_in_parts, checkpoints, optimizer_on_the_host):
            check(folder, place)


on_late_device(at_one_place, device_to_device, twins_of_slots, host_memory, a_store_is_killed, memory_beside_the_plan, refusals)
