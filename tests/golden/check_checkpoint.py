#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that transformers opens checkpoints and computes what Ballast computes: trains the golden models for a few
steps on two stages, opens each checkpoint with AutoModelForCausalLM and compares the loss of the next step.

    BALLAST_BIN=build/bin python3 check_checkpoint.py

Needs torch, transformers and numpy, so it is not among the tests that run by themselves. A wrong weight, a wrong name, a
transposed matrix or another epsilon changes the loss in the first digits; rounding changes it by about 1e-7."""
import json
import os
import pathlib
import subprocess
import tempfile

import numpy
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ.get("BALLAST_BIN", HERE.parents[1] / "build" / "bin"))
STEPS, MICRO_BATCH, MICRO_BATCHES, SEQ, HEADER = 6, 2, 4, 32, 1024
TOLERANCE = 2e-6


def run(folder, job, *arguments):
    report = folder / "report.jsonl"
    subprocess.run([BIN / "ballastctl", "run", job, "--local", "--report", report, *arguments], check=True,
                   stderr=subprocess.PIPE, env=dict(os.environ, XDG_RUNTIME_DIR=str(folder)))
    return {event["step"]: event["loss"] for event in map(json.loads, report.read_text().splitlines())}


def loss_of_step(model, tokens, step):
    """Mean loss of the step's windows, sequential order."""
    count = MICRO_BATCH * MICRO_BATCHES
    windows = [((step - 1) * count + i) % ((len(tokens) - 1) // SEQ) for i in range(count)]
    rows = torch.tensor(numpy.stack([tokens[w * SEQ:w * SEQ + SEQ + 1] for w in windows]))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), rows[:, 1:].reshape(-1)).item()


def check(family, tied, folder):
    tokens = numpy.frombuffer((HERE / family / "tokens.bin").read_bytes()[HEADER:], dtype=numpy.uint16).astype(numpy.int64)
    job = folder / "job.yaml"
    job.write_text(json.dumps({
        "model": {"init": str(HERE / family), "seq": SEQ},
        "data": {"train": str(HERE / family / "tokens.bin"), "format": "bin", "order": "sequential"},
        "train": {"steps": STEPS, "micro_batch": MICRO_BATCH, "micro_batches": MICRO_BATCHES, "lr": 4e-3, "clip": 1.0},
        "pipeline": {"stages": 2, "schedule": "1f1b", "threads": 1},
        "checkpoint": {"folder": str(folder / "checkpoints"), "every": 1},
    }))
    losses = run(folder, job)
    for step in range(1, STEPS):
        path = folder / "checkpoints" / f"step-{step:06}"
        model, said = transformers.AutoModelForCausalLM.from_pretrained(
            path, output_loading_info=True, attn_implementation="eager")  # which alone caps scores
        missing, unexpected = said["missing_keys"], said["unexpected_keys"]
        assert not unexpected and not said["mismatched_keys"], said
        assert set(missing) <= ({"lm_head.weight"} if tied else set()), said
        got, expected = loss_of_step(model.eval(), tokens, step + 1), losses[step + 1]
        assert abs(got - expected) <= TOLERANCE * expected, f"{family}, step {step + 1}: {got} there, {expected} here"
        print(f"ok {family} {path.name}: loss of the next step {got:.9f} there, {expected:.9f} here")


def main():
    torch.set_num_threads(1)
    for family, tied in (("gpt2", True), ("llama", False), ("llama3", True), ("mistral", False), ("qwen2", True),
                         ("mistral-window", False), ("qwen2-window", True), ("qwen3", True), ("phi3", False), ("phi3-long", True),
                         ("gemma", True), ("gemma2", True), ("gemma3", True)):
        with tempfile.TemporaryDirectory(prefix="ballast-oracle-") as folder:
            os.chmod(folder, 0o700)
            check(family, tied, pathlib.Path(folder))


main()
