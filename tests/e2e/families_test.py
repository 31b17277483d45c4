# SPDX-License-Identifier: Apache-2.0
"""Models as people have them, from Hugging Face folders: Llama 3's slowed positions (tied, heads of another size), Mistral, Qwen2
(biases of queries, keys and values). Each
follows the trajectory that PyTorch and transformers made of the same weights and tokens, with the same bits for 1 to 3 stages,
recomputed, balanced, and on two tensor ranks where its key heads divide; its checkpoint says in config.json what was read, and
a run goes on from it as a folder of its own. Windows that sequences are longer than are refused."""
import json
import os

from ballast import GOLDEN, losses, run_job, scratch, write_job

FAMILIES = {"llama3": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
            "mistral": {"rope_type": "default", "rope_theta": 10000.0},
            "qwen2": {"rope_type": "default", "rope_theta": 10000.0}}


def golden_of(family):
    with open(f"{GOLDEN}/{family}/golden.json") as file:
        return json.load(file)


def job_of(folder, family, init=None, **more):
    golden = golden_of(family)
    return write_job(folder, f"{family}.yaml", model={"init": init or f"{GOLDEN}/{family}", "seq": golden["seq"]},
                     data={"train": f"{GOLDEN}/{family}/tokens.bin"}, **{"train": golden["train"], **more})


def trajectory(folder, family):
    golden = golden_of(family)
    reference = None
    ways = [{}, {"pipeline": {"stages": 2}}, {"pipeline": {"stages": 3, "schedule": "zb-h1"}},
            {"pipeline": {"stages": 3, "recompute": "full"}}, {"pipeline": {"stages": 2, "recompute": "attention"}},
            {"pipeline": {"stages": 3, "attention": "naive"}},
            {"pipeline": {"stages": 3}, "balance": {"policy": "drop", "cap": 2}}]
    for way in ways:
        report, _ = run_job(folder, job_of(folder, family, **way), "--local")
        if "naive" not in str(way):
            reference = reference or losses(report)
            assert losses(report) == reference, f"{family}, {way}: other bits"
        steps = [event for event in report if event["event"] == "step"]
        for key, of_event in (("losses", "loss"), ("grad_norms", "grad_norm")):
            worst = max(abs(step[of_event] - value) / abs(value) for step, value in zip(steps, golden[key]))
            assert len(steps) == len(golden[key]) and worst <= 1e-4, f"{family}, {way}: {key} differ by {worst:.2g}"
    print(f"ok {family} follows PyTorch in {len(ways)} ways")


def tensor_ranks(folder):
    for family in ("llama3", "qwen2"):
        found = [losses(run_job(folder, job_of(folder, family, parallel={"tensor": ranks, "tensor_parts": 2}), "--local")[0])
                 for ranks in (1, 2)]
        assert found[0] == found[1], (family, found)
    print("ok llama3 and qwen2 on two tensor ranks")


def checkpoints(folder, family, rope):
    kept = os.path.join(folder, f"kept-{family}")
    run_job(folder, job_of(folder, family, checkpoint={"folder": kept, "every": 20}), "--local")
    saved = os.path.join(kept, "step-000020")
    with open(os.path.join(saved, "config.json")) as file:
        config = json.load(file)
    with open(f"{GOLDEN}/{family}/config.json") as file:
        given = json.load(file)
    assert config["rope_parameters"] == rope, config
    for key in ("model_type", "architectures", "head_dim", "num_key_value_heads", "tie_word_embeddings"):
        assert key not in given or config[key] == given[key], (key, config[key], given[key])
    train = {**golden_of(family)["train"], "steps": 1}
    run_job(folder, job_of(folder, family, init=saved, train=train), "--local")
    print(f"ok a checkpoint of {family} is a folder to begin with")


def windows(folder):
    short = os.path.join(folder, "short")
    os.mkdir(short)
    for name in os.listdir(f"{GOLDEN}/mistral"):
        if name != "config.json":
            os.symlink(f"{GOLDEN}/mistral/{name}", os.path.join(short, name))
    with open(f"{GOLDEN}/mistral/config.json") as file, open(os.path.join(short, "config.json"), "w") as to:
        json.dump({**json.load(file), "sliding_window": 16}, to)
    _, done = run_job(folder, job_of(folder, "mistral", init=short), "--local", expect=2)
    assert "sees 16 tokens (sliding_window), and sequences of 32 are longer" in done.stderr, done.stderr
    run_job(folder, job_of(folder, "mistral", init=short, train={"steps": 1}), "--local", "--set", "model.seq=16")
    print("ok sequences beyond a window are refused, within it they are trained")


def main():
    with scratch() as folder:
        for family, rope in FAMILIES.items():
            trajectory(folder, family)
            checkpoints(folder, family, rope)
        tensor_ranks(folder)
        windows(folder)


if __name__ == "__main__":
    main()
