#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of every family in transformers: nothing is missing, unexpected or of another shape, and the model computes
what Ballast computes. A few steps are trained, on two replicas with two tensor ranks where the key heads divide; from each
checkpoint transformers computes the loss of the step that follows. A wrong weight, a wrong name, a transposed matrix or
another epsilon changes it in the first digits, rounding by about 1e-7. A checkpoint after a step that changes no weight has
the logits of the folder it began with, to the bit."""
import importlib.util
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import need_torch, scratch, skip  # noqa: E402

need_torch()
if importlib.util.find_spec("transformers") is None:
    skip("there is no package transformers in this Python")

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from ballast import GOLDEN, run_job, write_job  # noqa: E402

FAMILIES = ("gpt2", "llama", "llama3", "mistral", "mistral-window", "qwen2", "qwen2-window", "qwen3", "phi3", "phi3-long",
            "gemma", "gemma2", "gemma3")
STEPS, MICRO_BATCH, MICRO_BATCHES, SEQ, HEADER = 4, 2, 4, 32, 1024
TOLERANCE = 2e-6


def config_of(family):
    with open(f"{GOLDEN}/{family}/config.json") as file:
        return json.load(file)


def grid_of(config):
    heads = config.get("num_key_value_heads", config.get("n_head", config.get("num_attention_heads")))
    return {"tensor": 2, "data": 2} if heads % 2 == 0 else {"data": 2}


def train(folder, family, name, steps, lr):
    """The report of a run, and the folder of its checkpoints."""
    job = write_job(folder, f"{name}.yaml", model={"init": f"{GOLDEN}/{family}", "seq": SEQ},
                    data={"train": f"{GOLDEN}/{family}/tokens.bin", "format": "bin", "order": "sequential"},
                    train={"steps": steps, "micro_batch": MICRO_BATCH, "micro_batches": MICRO_BATCHES, "lr": lr, "clip": 1.0},
                    pipeline={"stages": 2, "schedule": "1f1b", "threads": 1}, parallel=grid_of(config_of(family)),
                    checkpoint={"folder": f"{folder}/{name}", "every": 1})
    return run_job(folder, job, "--local")[0], f"{folder}/{name}"


def opened(path, tied):
    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        path, output_loading_info=True, attn_implementation="eager")  # which alone caps scores
    assert not said["unexpected_keys"] and not said["mismatched_keys"], (path, said)
    assert set(said["missing_keys"]) <= ({"lm_head.weight"} if tied else set()), (path, said)
    return model.eval()


def tokens_of(family):
    with open(f"{GOLDEN}/{family}/tokens.bin", "rb") as file:
        return numpy.frombuffer(file.read()[HEADER:], dtype=numpy.uint16).astype(numpy.int64)


def rows_of(tokens, step):
    """The windows of a step, in sequential order."""
    count = MICRO_BATCH * MICRO_BATCHES
    windows = [((step - 1) * count + i) % ((len(tokens) - 1) // SEQ) for i in range(count)]
    return torch.tensor(numpy.stack([tokens[w * SEQ:w * SEQ + SEQ + 1] for w in windows]))


def logits_of(model, rows):
    with torch.no_grad():
        return model(rows[:, :-1]).logits


def loss_of(model, rows):
    logits = logits_of(model, rows)
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), rows[:, 1:].reshape(-1)).item()


def losses(folder, family, tied):
    report, kept = train(folder, family, f"{family}-trained", STEPS, 4e-3)
    here = {event["step"]: event["loss"] for event in report if event["event"] == "step"}
    for step in range(1, STEPS):
        there = loss_of(opened(f"{kept}/step-{step:06}", tied), rows_of(tokens_of(family), step + 1))
        assert abs(there - here[step + 1]) <= TOLERANCE * here[step + 1], (family, step + 1, there, here[step + 1])
    print(f"ok transformers computes the losses of {family}'s checkpoints")


def logits(folder, family, tied):
    kept = train(folder, family, f"{family}-same", 1, 1e-30)[1]
    rows = rows_of(tokens_of(family), 1)
    before, after = logits_of(opened(f"{GOLDEN}/{family}", tied), rows), logits_of(opened(f"{kept}/step-000001", tied), rows)
    assert torch.equal(before, after), (family, (before - after).abs().max().item())
    print(f"ok a checkpoint of {family} has the logits of its folder")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with scratch() as folder:
        for family in FAMILIES:
            tied = config_of(family).get("tie_word_embeddings", family == "gpt2")
            losses(folder, family, tied)
            logits(folder, family, tied)


main()
