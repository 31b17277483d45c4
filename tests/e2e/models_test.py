# SPDX-License-Identifier: Apache-2.0
"""Models as people have them, from Hugging Face folders: Llama 3's slowed positions (tied, heads of another size), Mistral,
Qwen2 (biases of queries, keys and values), Qwen3 (norms of heads), Phi3 (fused matrices, heads of which a part rotates, and with longrope), Gemma,
Gemma 2 (caps, norms after, windows in every second layer) and 3 (two rotations), windows shorter than the sequences. Each
follows the trajectory that PyTorch and transformers made of the same weights and tokens, with the same bits for 1 to 3 stages
(4 of the Gemmas, which have more layers), recomputed, dropped, parked, and on two tensor ranks where its key heads divide; its checkpoint says in config.json what was read, and
a run goes on from it as a folder of its own."""
import json
import os

from ballast import GOLDEN, losses, run_job, scratch, served, write_job

FAMILIES = ("llama3", "mistral", "qwen2", "mistral-window", "qwen2-window", "qwen3", "phi3", "phi3-long", "gemma",
            "gemma2", "gemma3")
TENSOR = ("llama3", "qwen2", "qwen2-window", "qwen3", "phi3", "gemma2", "gemma3")  # two key heads, or four
SOAK = os.environ.get("BALLAST_SOAK") == "1"
# Keys of a checkpoint's config.json that must hold what was given, where the given one has them.
KEPT = ("model_type", "architectures", "head_dim", "num_key_value_heads", "tie_word_embeddings", "rope_parameters", "rope_scaling",
        "max_position_embeddings",
        "partial_rotary_factor", "sliding_window", "use_sliding_window", "layer_types", "hidden_activation", "rms_norm_eps",
        "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")


def golden_of(family):
    with open(f"{GOLDEN}/{family}/golden.json") as file:
        return json.load(file)


def job_of(folder, family, init=None, **more):
    golden = golden_of(family)
    return write_job(folder, f"{family}.yaml", model={"init": init or f"{GOLDEN}/{family}", "seq": golden["seq"]},
                     data={"train": f"{GOLDEN}/{family}/tokens.bin"}, **{"train": golden["train"], **more})


def layers_of(family):
    with open(f"{GOLDEN}/{family}/config.json") as file:
        return json.load(file)["num_hidden_layers"]


def run_way(folder, place, family, way, *words):
    """A job of two stages unless the way says otherwise."""
    ranks = way.get("pipeline", {}).get("stages", 2) * way.get("parallel", {}).get("tensor", 1)
    return run_job(folder, job_of(folder, family, **way), *place(ranks, stores="balance" in way), *words)[0]


def trajectory(folder, place, family):
    """The first way leaves a checkpoint."""
    golden = golden_of(family)
    reference = None
    ways = [{"checkpoint": {"folder": os.path.join(folder, f"kept-{family}"), "every": 20}},
            {"pipeline": {"stages": 1}},
            {"pipeline": {"stages": 2, "schedule": "zb-h1", "recompute": "attention"}},
            {"pipeline": {"stages": 3}, "balance": {"policy": "bpipe", "cap": 2, "mode": "fewest"}}]
    if layers_of(family) > 3:
        ways.append({"pipeline": {"stages": layers_of(family), "schedule": "zb-h1"}})
    if SOAK:
        ways += [{"pipeline": {"stages": 2}},
                 {"pipeline": {"stages": 2, "recompute": "attention"}}, {"pipeline": {"stages": 3, "recompute": "full"}},
                 {"pipeline": {"stages": 3, "attention": "naive"}},
                 {"pipeline": {"stages": 3}, "balance": {"policy": "drop", "cap": 2}}]
    for way in ways:
        report = run_way(folder, place, family, way)
        if "naive" not in str(way):
            reference = reference or losses(report)
            assert losses(report) == reference, f"{family}, {way}: other bits"
        steps = [event for event in report if event["event"] == "step"]
        if "bpipe" in str(way):
            assert all(sum(stage["evicted"] for stage in step["stages"]) > 0 for step in steps), (family, steps[-1])
        for key, of_event in (("losses", "loss"), ("grad_norms", "grad_norm")):
            worst = max(abs(step[of_event] - value) / abs(value) for step, value in zip(steps, golden[key]))
            assert len(steps) == len(golden[key]) and worst <= 1e-4, f"{family}, {way}: {key} differ by {worst:.2g}"
    print(f"ok {family} follows PyTorch in {len(ways)} ways")


def tensor_ranks(folder, place):
    for family in TENSOR if SOAK else TENSOR[-4:]:
        ways = [{"parallel": {"tensor": ranks, "tensor_parts": 2}} for ranks in (1, 2)]
        if SOAK or family == TENSOR[-1]:
            ways.append({**ways[1], "pipeline": {"stages": 3}, "balance": {"policy": "bpipe", "cap": 2, "mode": "fewest"}})
        found = [losses(run_way(folder, place, family, way)) for way in ways]
        assert all(bits == found[0] for bits in found), (family, found)
    print("ok on two tensor ranks")


def checkpoints(folder, place, family):
    saved = os.path.join(folder, f"kept-{family}", "step-000020")
    with open(os.path.join(saved, "config.json")) as file:
        config = json.load(file)
    with open(f"{GOLDEN}/{family}/config.json") as file:
        given = json.load(file)
    if family == "phi3-long":  # written as published: as rope_scaling
        given["rope_scaling"] = {"type": "longrope", **{k: given["rope_parameters"][k] for k in ("short_factor", "long_factor")}}
        given["partial_rotary_factor"] = given.pop("rope_parameters")["partial_rotary_factor"]
        assert config["original_max_position_embeddings"] == 16, config
        config["rope_scaling"] = {key: [round(x, 6) for x in value] if isinstance(value, list) else value
                                  for key, value in config["rope_scaling"].items()}
    for key in KEPT:
        assert given.get(key) is None or config.get(key) == given[key], (family, key, config.get(key), given[key])
    run_way(folder, place, family, {"init": saved, "train": {**golden_of(family)["train"], "steps": 1}})
    print(f"ok a checkpoint of {family} is a folder to begin with")


def other_ranks(folder):
    """Fused tensors of more query than key heads are cut in unequal runs: saved by two tensor ranks, read by one, and back."""
    for before, after in ((2, 1), (1, 2)):
        def job(ranks, steps):
            return job_of(folder, "phi3", train={**golden_of("phi3")["train"], "steps": steps, "lr_schedule": "constant"},
                          parallel={"tensor": ranks, "tensor_parts": 2}, pipeline={"stages": ranks + 1},
                          checkpoint={"folder": os.path.join(folder, f"ranks-{before}"), "every": 4})
        whole = job_of(folder, "phi3", train={**golden_of("phi3")["train"], "steps": 8, "lr_schedule": "constant"},
                       parallel={"tensor_parts": 2})
        expected = losses(run_job(folder, whole, "--local")[0])
        first = losses(run_job(folder, job(before, 4), "--local")[0])
        assert first == expected[:4], (before, first, expected)
        report, _ = run_job(folder, job(after, 8), "--local", "--resume")
        rest = [(event["loss"].hex(), event["grad_norm"].hex()) for event in report if event["event"] == "step"]
        assert rest == expected[4:], (after, rest, expected)
    print("ok phi3 goes on with other tensor ranks")


def refusals(folder):
    other = os.path.join(folder, "other")
    os.mkdir(other)
    for name in os.listdir(f"{GOLDEN}/gemma2"):
        if name != "config.json":
            os.symlink(f"{GOLDEN}/gemma2/{name}", os.path.join(other, name))
    with open(f"{GOLDEN}/gemma2/config.json") as file:
        given = json.load(file)
    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    for change, message in (({"layer_types": kinds}, "layer_types: layer 3 is full_attention, which does not go on"),
                            ({"use_bidirectional_attention": True}, "use_bidirectional_attention: true is not supported")):
        with open(os.path.join(other, "config.json"), "w") as to:
            json.dump({**given, **change}, to)
        _, done = run_job(folder, job_of(folder, "gemma2", init=other), "--local", expect=2)
        assert message in done.stderr, done.stderr
    print("ok what would change the mathematics is refused by name")


def main():
    with scratch() as folder:
        with served(folder) as place:
            for family in FAMILIES:
                trajectory(folder, place, family)
                checkpoints(folder, place, family)
            tensor_ranks(folder, place)
        other_ranks(folder)
        refusals(folder)


if __name__ == "__main__":
    main()
