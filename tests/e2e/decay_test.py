# SPDX-License-Identifier: Apache-2.0
"""Weight decay of every tensor (train.decay: all): the losses of PyTorch's AdamW over all parameters, other ones than with
decay of matrices, the same to the bit on every number of stages, replicas and tensor ranks, with steps that go on ahead and
after a resumption. What decays is told by the weights: without a gradient's rate nothing else moves them."""
import glob
import json
import os
import struct

from ballast import GOLDEN, losses, run_job, scratch, write_job

STEPS = 6
TRAIN = {"steps": STEPS, "micro_batch": 2, "micro_batches": 4, "lr": 4e-3, "clip": 1.0, "weight_decay": 0.5}


def trained(folder, *sets, steps=None, resume=False, **sections):
    job = write_job(folder, **{"train": TRAIN, **sections})
    words = [word for one in sets for word in ("--set", one)]
    words += ["--steps", str(steps)] if steps else []
    return losses(run_job(folder, job, "--local", *words, *(["--resume"] if resume else []))[0])


def golden_losses(folder):
    with open(f"{GOLDEN}/gpt2/golden.json") as file:
        settings = json.load(file)["train"]
    with open(f"{GOLDEN}/gpt2/golden-decay.json") as file:
        expected = json.load(file)["losses"]
    for decay, near in (("all", True), ("matrices", False)):
        found = [float.fromhex(loss) for loss, _ in trained(folder, f"train.decay={decay}", train=settings)]
        worst = max(abs(a - b) / b for a, b in zip(found, expected))
        assert len(found) == len(expected)
        assert worst < 1e-5 if near else worst > 3e-5, f"decay of {decay}: {worst} from PyTorch's of all"
        print(f"ok decay of {decay}: losses are {worst:.1e} from those of torch.optim.AdamW over all parameters")


def vectors_of(folder):
    """The biases and gains of a checkpoint."""
    found = {}
    for path in glob.glob(f"{folder}/model-*.safetensors"):
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            for name, entry in header.items():
                if name != "__metadata__" and len(entry["shape"]) == 1:
                    first, end = entry["data_offsets"]
                    file.seek(8 + length + first)
                    found[name] = struct.unpack(f"<{(end - first) // 4}f", file.read(end - first))
    return found


def what_decays(folder):
    kept = {}
    for decay in ("matrices", "all"):
        place = os.path.join(folder, f"weights-{decay}")
        trained(folder, f"train.decay={decay}", "train.clip=1e-30", "train.eps=1e30", steps=2, checkpoint={"folder": place})
        kept[decay] = vectors_of(f"{place}/step-000002")
    assert len(kept["all"]) > 20 and kept["all"].keys() == kept["matrices"].keys()
    factor = (1 - 4e-3 * 0.5) ** 2
    for name, values in kept["all"].items():
        for one, before in zip(values, kept["matrices"][name]):
            assert abs(one - factor * before) <= 1e-6 * abs(before), f"{name}: {one} of {before}"
    print(f"ok all {len(kept['all'])} norms and biases decay, and none of them with decay of matrices")


def same_bits(folder):
    expected = trained(folder, "train.decay=all")
    assert expected != trained(folder) and trained(folder) == trained(folder, "train.decay=matrices")
    for sets in (["pipeline.stages=1"], ["pipeline.stages=3"], ["pipeline.stages=3", "pipeline.schedule=zb-h1"],
                 ["train.post_validation=true"], ["train.post_validation=true", "train.clip=0.5"]):
        reference = expected if "clip" not in sets[-1] else trained(folder, "train.decay=all", "train.clip=0.5")
        assert trained(folder, "train.decay=all", *sets) == reference, sets
    for kind in ("data", "tensor"):
        parts = ["train.decay=all", f"parallel.{kind}_parts=2"]
        alone, shared = trained(folder, *parts), trained(folder, *parts, f"parallel.{kind}=2")
        assert alone == shared, f"parallel.{kind}"
    print("ok decay of all has the same bits on stages, schedules, replicas, tensor ranks, and ahead of commits")


def going_on(folder):
    place = os.path.join(folder, "kept")
    sections = {"checkpoint": {"folder": place, "every": 3}}
    expected = trained(folder, "train.decay=all")
    assert trained(folder, "train.decay=all", steps=3, **sections) == expected[:3]
    job = write_job(folder, train=TRAIN, **sections)
    report, _ = run_job(folder, job, "--local", "--resume", "--set", "train.decay=all", "--set", "pipeline.stages=3")
    found = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
    assert found == expected[3:], (found, expected)
    print("ok it goes on to the same bits on another number of stages")


def main():
    with scratch() as folder:
        golden_losses(folder)
        what_decays(folder)
        same_bits(folder)
        going_on(folder)


main()
