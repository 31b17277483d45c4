# SPDX-License-Identifier: Apache-2.0
"""Losses of some tokens alone (data.loss: masked): those of transformers' Trainer; the same to the bit on every number of
stages, schedules, policies, replicas and tensor ranks, with steps that go on ahead and after a resumption; held-out losses
are means over what counts; a mask of ones changes no bit; steps without a label; bad masks are refused before anything
starts."""
import json
import os
import shutil

from ballast import GOLDEN, losses, masked_tokens, run_job, scratch, small_inline, write_job

TRAIN = {"steps": 5, "micro_batch": 2, "micro_batches": 4, "lr": 4e-3, "clip": 1.0}
MASKED = ["data.loss=masked"]


def run(folder, *sets, arguments=(), data=None, **sections):
    words = [word for one in sets for word in ("--set", one)]
    sections["data"] = {"train": os.path.join(folder, "masked.bin"), **(data or {})}
    return run_job(folder, write_job(folder, **{"train": TRAIN, **sections}), "--local", *words, *arguments)[0]


def trained(folder, *sets, **sections):
    return losses(run(folder, *MASKED, *sets, **sections))


def golden_losses(folder):
    with open(f"{GOLDEN}/gpt2/golden.json") as file:
        settings = json.load(file)["train"]
    with open(f"{GOLDEN}/gpt2/golden-masked.json") as file:
        expected = json.load(file)["losses"]
    found = [float.fromhex(loss) for loss, _ in trained(folder, train=settings)]
    worst = max(abs(a - b) / b for a, b in zip(found, expected))
    assert len(found) == len(expected) and worst < 1e-5, worst
    print(f"ok losses are {worst:.1e} from those of transformers")


def same_bits(folder):
    model = small_inline(hidden=32, seq=32, vocab=128)

    def of(*sets):
        return trained(folder, *sets, model=model)

    expected = of()
    for sets in (["pipeline.stages=1"], ["pipeline.stages=4", "pipeline.schedule=zb-h1"], ["pipeline.schedule=zb-v"],
                 ["pipeline.stages=4", "balance.policy=bpipe", "memory.slots=3"],
                 ["pipeline.stages=4", "balance.policy=drop", "memory.slots=2"], ["train.post_validation=true"]):
        assert of(*sets) == expected, sets
    assert losses(run(folder, model=model)) != expected
    for one, *others in (("parallel.data_parts=2", "parallel.data=2"), ("parallel.tensor_parts=2", "parallel.tensor=2"),
                         ("pipeline.slices=2", "pipeline.schedule=seq1f1b"), ("train.dtype=bf16", "pipeline.recompute=full"),
                         ("pipeline.schedule=chimera", "pipeline.recompute=attention")):
        schedule = [] if "chimera" in one else ["pipeline.stages=1"]
        assert of(one, *schedule) == of(one, *others), (one, others)
    wide = ["model.vocab=100000", "model.seq=128"]  # rows with a loss are moved (the head is in two pieces)
    expected = of(*wide)
    for sets in (["pipeline.stages=1"], ["pipeline.stages=4", "balance.policy=drop", "memory.slots=2"], ["pipeline.schedule=zb-v"],
                 ["pipeline.recompute=full"], ["pipeline.threads=2"]):
        assert of(*wide, *sets) == expected, sets
    one = [*wide, "parallel.data_parts=2"]
    assert of(*one, "parallel.data=2") == of(*one, "pipeline.stages=1") != expected
    print("ok the same bits on stages, schedules, policies, replicas, tensor ranks, slices, in bf16, and ahead of commits")


def copy_of(folder, name, mask):
    """The golden tokens with a mask of their own."""
    path = os.path.join(folder, name)
    shutil.copyfile(f"{GOLDEN}/gpt2/tokens.bin", path)
    with open(path + ".mask", "wb") as file:
        file.write(bytes(mask))
    return path


def tokens():
    return (os.path.getsize(f"{GOLDEN}/gpt2/tokens.bin") - 1024) // 2


def ones(folder):
    whole = copy_of(folder, "whole.bin", [1] * tokens())
    held_out = {"validation": 0.2}
    train = {**TRAIN, "validate_every": 2}

    def values(report):
        return [(event["event"], event["loss"].hex()) for event in report if event["event"] in ("step", "validation")]

    plain = values(run(folder, train=train, data={**held_out, "train": whole}))
    assert len(plain) > 6 and values(run(folder, *MASKED, train=train, data={**held_out, "train": whole})) == plain
    job = write_job(folder, data={"train": whole})
    _, done = run_job(folder, job, "--local", "--check")
    assert "whole.bin.mask exists, but every token has a loss; data.loss: masked takes it" in done.stderr, done.stderr
    _, done = run_job(folder, job, "--local", "--check", "--set", "data.loss=masked")
    assert "mask" not in done.stderr, done.stderr
    print("ok a mask of ones changes no bit, of training and of held-out losses")


def held_out(folder):
    """Training is the same; what counts in the held-out file, what does not, and all of it."""
    with open(f"{GOLDEN}/gpt2/tokens.mask", "rb") as file:
        mask = file.read()
    some = [1 - byte for byte in mask]
    means = []
    labels = range(1, (tokens() - 1) // 32 // 2 * 2 * 32 + 1)  # of whole micro-batches of two windows of 32
    for name, counted in (("some", some), ("others", mask), ("all", [1] * tokens())):
        sections = {"data": {"validation": [copy_of(folder, name, counted)]}, "train": {**TRAIN, "validate_every": 5}}
        report = run(folder, *MASKED, **sections)
        loss, = [event["loss"] for event in report if event["event"] == "validation"]
        assert losses(report) == trained(folder), "held-out data do not train"
        other, = [event["loss"] for event in run(folder, *MASKED, "parallel.data=2", "parallel.data_parts=2", "pipeline.stages=1",
                                                 **sections) if event["event"] == "validation"]
        assert abs(other - loss) < 1e-6 * loss, "replicas take other parts of the held-out windows"
        means.append((sum(counted[label] for label in labels), loss))
    (count, loss), (other_count, other_loss), (whole, whole_loss) = means
    assert count + other_count == whole and abs(loss - other_loss) > 1e-3
    assert abs(count * loss + other_count * other_loss - whole * whole_loss) < 1e-6 * whole * whole_loss, means
    print("ok held-out losses are means over what counts")


def going_on(folder):
    expected = trained(folder)
    sections = {"checkpoint": {"folder": os.path.join(folder, "kept"), "every": 2}}
    assert losses(run(folder, *MASKED, arguments=("--steps", "2"), **sections)) == expected[:2]
    report = run(folder, *MASKED, "pipeline.stages=3", arguments=("--resume",), **sections)
    assert [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"] == expected[2:]
    print("ok it goes on to the same bits on another number of stages")


def without_labels(folder):
    """One sequence a step; the answers are in the third window alone."""
    path = copy_of(folder, "few.bin", [64 < token <= 96 for token in range(tokens())])
    report = run(folder, *MASKED, data={"train": path}, train={**TRAIN, "micro_batch": 1, "micro_batches": 1})
    steps = [(event["loss"], event["grad_norm"]) for event in report if event["event"] == "step"]
    assert [step == (0, 0) for step in steps] == [True, True, False, True, True], steps
    print("ok steps without a label that counts have no loss and no gradient")


def refused(folder):
    path = copy_of(folder, "bad.bin", [1] * tokens())
    job = write_job(folder, train=TRAIN, data={"train": path, "loss": "masked"})
    for mask, message in ((None, "bad.bin.mask: cannot open"), (b"\1" * 7, "bad.bin.mask: has 7 bytes, one for each of the "),
                          (bytes(tokens()), "no token to train on counts in the mask of "),
                          (b"1" * tokens(), "bad.bin.mask: byte 0 is 49, a mask has 0 and 1")):
        if mask is None:
            os.unlink(path + ".mask")
        else:
            with open(path + ".mask", "wb") as file:
                file.write(mask)
        _, done = run_job(folder, job, "--local", expect=2)
        assert message in done.stderr and "data.loss" in done.stderr, done.stderr
    print("ok bad masks are refused by name")


def main():
    with scratch() as folder:
        masked_tokens(folder)
        for part in (golden_losses, same_bits, ones, held_out, going_on, without_labels, refused):
            part(folder)


main()
