# SPDX-License-Identifier: Apache-2.0
"""What `ballastctl plan` says the fullest device needs is what the fullest stage of the written job holds, to the byte, in fp32
and bf16, with checkpoints and without, ahead of commits, with a head of its own, uneven layers and several chunks; and under
--memory no stage holds more. On a device, which has the tokens of all micro-batches, plan, simulate and stages agree too. Without stage-service to ask, the plan says what it leaves out. (Every tag of a stage in many more
settings: executor/footprint.)"""
import json
import os
import shutil
import subprocess

import ballast


def plan(folder, job, *arguments, program=ballast.CTL, **more):
    done = subprocess.run([program, "plan", job, "-o", "json", *arguments], env=dict(ballast.environment(folder), **more), text=True,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout)


def of_device(memory):
    """Bytes that plans count: on a device there are also twins of buffers in memory of the host."""
    return sum(memory.values()) - memory.get("staging", 0)


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
    bytes_held = [of_device(stage) for stage in ballast.held_memory(folder, path)]
    assert max(bytes_held) == best["memory_bytes"] or best["policy"] in ("bpipe", "cap", "auto"), (best, bytes_held)
    if limit is not None:
        assert max(bytes_held) <= int(free * limit), (best, bytes_held)
    print("ok", settings, words, best["layers"], best["policy"], best["recompute"], max(bytes_held))
    return best["memory_bytes"]


def check_on_device(folder):
    """A device that is not there: its stages hold tokens and labels of all micro-batches, as plan and simulate say."""
    if not os.path.exists(os.path.join(ballast.LATE, "libballast-cuda.so")):
        print("skipped: tests/late is not built")
        return
    os.environ["BALLAST_MODULES"] = ballast.LATE
    check(folder, words=["--schedule", "1f1b", "--attention", "naive", *ballast.ON_DEVICE])
    path = os.path.join(folder, "planned.yaml")
    done = subprocess.run([ballast.CTL, "simulate", path, "-o", "json"], env=ballast.environment(folder), text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    simulated, stages = json.loads(done.stdout)["stages"], ballast.held_memory(folder, path)
    assert [stage["memory_bytes"] for stage in simulated] == [of_device(stage) for stage in stages], (simulated, stages)
    tokens = 4 * 2 * 2 * 48 * 4 # micro-batches, tokens and labels, sequences of them, seq, bytes
    assert all(tokens < one["memory"]["data"] == stage["data"] for one, stage in zip(simulated, stages)), (simulated, stages)
    del os.environ["BALLAST_MODULES"]
    print("ok on a device:", [stage["data"] for stage in stages], "bytes of data")


def check_copies_of_gpu(folder):
    """The rounded weights that a GPU's products read follow from the model: they are as many bytes with and without one."""
    fake = os.path.join(ballast.BUILD, "tests", "fake_cuda")
    if not os.path.exists(os.path.join(fake, "libballast-cuda-compute.so")):
        print("skipped: tests/fake_cuda is not built")
        return
    llama = {"init": None, "family": "llama", "layers": 4, "hidden": 48, "heads": 4, "kv_heads": 2, "ffn": 100, "vocab": 257,
             "seq": 32}
    gpt = {"init": None, "family": "gpt2", "layers": 4, "hidden": 48, "heads": 4, "vocab": 257, "seq": 32}
    for model, parallel in ((llama, {}), (gpt, {}), (gpt, {"tensor": 2, "tensor_parts": 4}), (llama, {"tensor": 2, "data": 2})):
        job = ballast.write_job(folder, model=model, train={"micro_batch": 2, "micro_batches": 4, "dtype": "bf16"},
                                pipeline={"stages": 2, "device": "cuda"}, parallel=parallel)
        weights = []
        for modules in (fake, folder):  # in the latter there are none
            done = subprocess.run([ballast.CTL, "simulate", job, "-o", "json"], text=True, timeout=120, capture_output=True,
                                  env={**ballast.environment(folder), "BALLAST_MODULES": modules}, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr
            said = json.loads(done.stdout)
            assert said.get("memory_without") == (None if modules == fake else "workspace of operations"), said
            weights.append([stage["memory"]["weights"] for stage in said["stages"]])
        assert weights[0] == weights[1], (model, parallel, weights)
        print("ok copies of a GPU:", model["family"], parallel, weights[0])


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
        check_on_device(folder)
        check_copies_of_gpu(folder)
        check_without_service(folder)


main()
