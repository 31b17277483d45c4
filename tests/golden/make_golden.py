#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of this folder with PyTorch and transformers; README.md says what they hold.

    python3 make_golden.py [FOLDER]        (default: the folder of this script)
    python3 make_golden.py --bf16 [FOLDER] (golden-bf16.json alone, for the models that are there)
    python3 make_golden.py --decay [FOLDER] (golden-decay.json alone, the same)
    python3 make_golden.py --masked [FOLDER] (tokens.mask and golden-masked.json alone, the same)

BALLAST_GOLDEN_MODELS=llama3,mistral makes these alone.

Runs on one thread, deterministically. Every model is trained twice, in fp32 (the numbers that are written) and in fp64;
the largest relative difference of the two is written beside them, so that a test's tolerance can be judged. What PROPERTIES
names is then taken out of the model, one after the other, and the training is made again: losses must change by far more
than a test tolerates, else a program without the property would pass.
"""
import copy
import json
import math
import os
import pathlib
import struct
import sys

import numpy
import torch
import transformers

FULL, SLIDING = "full_attention", "sliding_attention"
SEQ, VOCAB, TOKENS = 32, 101, 2001
STEPS, MICRO_BATCH, MICRO_BATCHES = 20, 2, 3
TRAIN = {
    "steps": STEPS,
    "micro_batch": MICRO_BATCH,
    "micro_batches": MICRO_BATCHES,
    "lr": 0.004,
    "min_lr": 0.0004,
    "lr_schedule": "cosine",
    "warmup": 5,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "clip": 1.0,
}


def models():
    wanted = [name for name in os.environ.get("BALLAST_GOLDEN_MODELS", "").split(",") if name]
    for number, model in enumerate(all_models()):
        if not wanted or model[0] in wanted:
            yield number, *model


def all_models():
    yield "gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=48, n_layer=3, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    yield "llama", transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=48, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0)
    # As Llama 3.2: tied, slowed positions of which some pairs keep their pace, some are slowed, some are between; heads of
    # another size than hidden / heads.
    yield "llama3", transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=48, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        bos_token_id=0, eos_token_id=0)
    yield "mistral", transformers.MistralForCausalLM, transformers.MistralConfig(
        vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=48, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=SEQ,
        bos_token_id=0, eos_token_id=0)
    yield "qwen2", transformers.Qwen2ForCausalLM, transformers.Qwen2Config(
        vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=48, intermediate_size=112, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0)
    small = dict(vocab_size=VOCAB, max_position_embeddings=SEQ, hidden_size=48, bos_token_id=0, eos_token_id=0,
                 pad_token_id=None)  # a padding token would keep its row of the embedding from learning
    yield "mistral-window", transformers.MistralForCausalLM, transformers.MistralConfig(
        **small, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=8)
    yield "qwen2-window", transformers.Qwen2ForCausalLM, transformers.Qwen2Config(
        **small, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-5, tie_word_embeddings=True, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    yield "qwen3", transformers.Qwen3ForCausalLM, transformers.Qwen3Config(
        **small, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 50000.0})
    # Of heads of 8 dimensions, 6 rotate.
    yield "phi3", transformers.Phi3ForCausalLM, transformers.Phi3Config(
        **small, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        tie_word_embeddings=False, sliding_window=12,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75})
    yield "gemma", transformers.GemmaForCausalLM, transformers.GemmaConfig(
        **small, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=16)
    yield "gemma2", transformers.Gemma2ForCausalLM, transformers.Gemma2Config(
        **small, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        query_pre_attn_scalar=24, attn_logit_softcapping=2.0, final_logit_softcapping=5.0, sliding_window=12)
    # Windows in all but every third layer; the layers with one rotate faster, the others are slowed.
    yield "gemma3", transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(
        **small, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        query_pre_attn_scalar=24, sliding_window=10, layer_types=[SLIDING, SLIDING, FULL, SLIDING],
        rope_parameters={FULL: {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                         SLIDING: {"rope_type": "default", "rope_theta": 100.0}})
    # As Phi 3.5 and Phi 4 mini: every pair divided by a number of its own, of sequences longer than the original ones.
    yield "phi3-long", transformers.Phi3ForCausalLM, transformers.Phi3Config(
        **{**small, "max_position_embeddings": 64}, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, tie_word_embeddings=True, original_max_position_embeddings=16,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 3.0, 6.0],
                         "original_max_position_embeddings": 16})
    # Sequences shorter than the window, as usual when fine-tuning: nothing is hidden, the layers keep their rotation.
    yield "gemma3-short", transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig(
        **small, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        query_pre_attn_scalar=24, sliding_window=64, layer_types=[SLIDING, FULL, SLIDING],
        rope_parameters={FULL: {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                         SLIDING: {"rope_type": "default", "rope_theta": 100.0}})


def set_modules(*names):
    """Lets modules of these names give what they are given."""
    def change(model):
        for module in list(model.modules()):
            for name, _ in list(module.named_children()):
                if name in names:
                    setattr(module, name, torch.nn.Identity())
    return change


def set_gains(model):
    """Gains are what is stored, not that much more than 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.sub_(1)


def set_embedding(model):
    model.model.embed_tokens.embed_scale.fill_(1.0)


# What is taken out of a model: keys of its configuration, or a function of it.
GEMMA_PROPERTIES = {"gains_from_one": set_gains, "embedding_scale": set_embedding}
PROPERTIES = {
    "mistral-window": {"window": {"sliding_window": None}},
    "qwen2-window": {"window": {"layer_types": [FULL] * 3}, "window_first": {"layer_types": [SLIDING] * 3}},
    "qwen3": {"head_norm": set_modules("q_norm", "k_norm"),
              "rope.theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}},
    "phi3": {"window": {"sliding_window": None},
             "rope.dims": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}},
    "phi3-long": {"rope.divisors": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                        "partial_rotary_factor": 0.75}}},
    "gemma": {**GEMMA_PROPERTIES, "gate": {"hidden_act": "silu"}},
    "gemma2": {**GEMMA_PROPERTIES, "gate": {"hidden_activation": "silu"},
               "post_norm": set_modules("post_attention_layernorm", "post_feedforward_layernorm"),
               "score_scale": {"query_pre_attn_scalar": 16}, "score_softcap": {"attn_logit_softcapping": None},
               "logit_softcap": {"final_logit_softcapping": None}, "window": {"layer_types": [FULL] * 4},
               "window_period": {"layer_types": [SLIDING] * 4}},
    "gemma3": {**GEMMA_PROPERTIES, "gate": {"hidden_activation": "silu"},
               "head_norm": set_modules("q_norm", "k_norm"),
               "post_norm": set_modules("post_attention_layernorm", "post_feedforward_layernorm"),
               "score_scale": {"query_pre_attn_scalar": 16}, "window": {"sliding_window": SEQ},
               "window_period": {"layer_types": [SLIDING] * 4},
               "rope": {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 100.0} for kind in (FULL, SLIDING)}},
               "window_rope": {"rope_parameters": {
                   kind: {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0} for kind in (FULL, SLIDING)}}},
    "gemma3-short": {"window_rope": {"rope_parameters": {
        kind: {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0} for kind in (FULL, SLIDING)}}},
}
MATTERS = 1e-3  # relative, of a loss: ten times what tests tolerate


def set_weights(model, seed, gain=1.0, sharp=1.0):
    """Weights large enough that every term matters: no bias is 0 and no gain is 1. Stored gains are `gain` and some; scores
    are `sharp` times as large."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                parameter.copy_((sharp if "q_proj" in name else 1.0) * 0.08 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.05 * noise)
            else:
                parameter.copy_(gain + 0.1 * noise)


def make_tokens(seed):
    """A sparse Markov chain with some noise, so that there is something to learn."""
    random = numpy.random.RandomState(seed)
    successors = random.randint(0, VOCAB, size=(VOCAB, 3))
    tokens = [0]
    for _ in range(TOKENS - 1):
        noisy = random.rand() < 0.1
        tokens.append(int(random.randint(VOCAB) if noisy else successors[tokens[-1], random.randint(3)]))
    return numpy.array(tokens, dtype=numpy.uint16)


def write_tokens(path, tokens):
    """llm.c's format: 256 int32 {magic, version, count}, then uint16 tokens."""
    header = [20240520, 1, len(tokens)] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + tokens.astype("<u2").tobytes())


def make_mask(seed, count):
    """1 for tokens with a loss: questions of up to 40 tokens without one, and answers of up to 15. Some windows have none."""
    random = numpy.random.RandomState(seed)
    mask, counts = [], 0
    while len(mask) < count:
        mask += [counts] * random.randint(1, 16 if counts else 41)
        counts = 1 - counts
    return numpy.array(mask[:count], dtype=numpy.uint8)


def rate(step):
    """The learning rate of step 1, 2, ...: lib/job/rate.h has the same formula."""
    if step <= TRAIN["warmup"]:
        return TRAIN["lr"] * step / TRAIN["warmup"]
    progress = (step - TRAIN["warmup"]) / (STEPS - TRAIN["warmup"])
    return TRAIN["min_lr"] + (TRAIN["lr"] - TRAIN["min_lr"]) * 0.5 * (1 + math.cos(math.pi * progress))


def batches_of(step, tokens):
    """The windows of the micro-batches of a step, from 0: [MICRO_BATCH, SEQ + 1] each."""
    windows = (len(tokens) - 1) // SEQ
    for i in range(MICRO_BATCHES):
        first = (step * MICRO_BATCHES + i) * MICRO_BATCH
        starts = [(first + j) % windows * SEQ for j in range(MICRO_BATCH)]
        yield torch.tensor(numpy.stack([tokens[s : s + SEQ + 1] for s in starts]).astype(numpy.int64))


def train(model, tokens, half=None, decay_all=False, mask=None):
    """With `half`, a bf16 copy of the model: gradients are computed on it, summed in fp32 and applied to `model`. With
    `mask`, the loss is that of transformers' Trainer: the mean over all labels of a step that are not -100."""
    masked = tokens if mask is None else numpy.where(mask == 1, tokens.astype(numpy.int64), -100)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": TRAIN["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}] if not decay_all else model.parameters(),
        betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"], foreach=False, weight_decay=TRAIN["weight_decay"])
    result = {"losses": [], "grad_norms": [], "rates": [], "micro_batch_losses": []}
    for k in range(STEPS):
        optimizer.zero_grad()
        losses = []
        if half is not None:
            half.load_state_dict(model.state_dict())
        labels = [batch[:, 1:] for batch in batches_of(k, masked)]
        counted = sum(int((of != -100).sum()) for of in labels)
        for batch, of in zip(batches_of(k, tokens), labels):
            logits = (model if half is None else half)(batch[:, :-1]).logits.to(model.dtype)
            if mask is None:
                total = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), of.reshape(-1), reduction="sum")
                loss = total / counted
            else:
                loss = transformers.loss.loss_utils.ForCausalLMLoss(
                    logits, None, VOCAB, num_items_in_batch=counted, shift_labels=of.contiguous())
                total = loss * counted
            loss.backward()
            if half is not None:
                take_gradients(half, model)
            losses.append(float(total.detach().double()) / (counted / MICRO_BATCHES))
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
        scale = min(1.0, TRAIN["clip"] / (norm + 1e-6))
        for parameter in model.parameters():
            parameter.grad.mul_(scale)
        for group in optimizer.param_groups:
            group["lr"] = rate(k + 1)
        optimizer.step()
        result["losses"].append(math.fsum(losses) / MICRO_BATCHES)
        result["grad_norms"].append(norm)
        result["rates"].append(rate(k + 1))
        result["micro_batch_losses"].append(losses)
    result["final_norms"] = {
        name: math.sqrt(float(p.detach().double().square().sum())) for name, p in sorted(model.named_parameters())}
    return result


def take_gradients(half, model):
    """Adds the gradients of one micro-batch, which bf16 holds, to fp32 sums."""
    for small, parameter in zip(half.parameters(), model.parameters()):
        gradient = small.grad.float()
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        small.grad = None


def make_bf16(folder):
    """The same training with every module in bf16 (master weights and sums of gradients in fp32): how far bf16 alone
    moves losses and norms, as PyTorch rounds."""
    for _, name, kind, config in models():
        config._attn_implementation = "eager"
        target = folder / name
        model = kind.from_pretrained(target, attn_implementation="eager", dtype=torch.float32)
        half = kind(config).to(torch.bfloat16)
        golden = json.loads((target / "golden.json").read_text())
        tokens = numpy.frombuffer((target / "tokens.bin").read_bytes()[1024:], dtype="<u2")
        result = train(model, tokens, half)
        difference = {key: max(abs(x - y) / abs(y) for x, y in zip(result[key], golden[key]))
                      for key in ("losses", "grad_norms")}
        written = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
                   "relative_difference_to_fp32": difference,
                   **{key: result[key] for key in ("losses", "grad_norms", "final_norms")}}
        (target / "golden-bf16.json").write_text(json.dumps(written, indent=1) + "\n")
        print(f"{name} in bf16: loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}, fp32 differs by {difference}")


def make_variant(folder, variant, compared, **how):
    """golden-VARIANT.json: the same training in another way, and how far it is at most from the first one."""
    for number, name, kind, config in models():
        if name not in ("gpt2", "qwen2"):
            continue
        config._attn_implementation = "eager"
        target = folder / name
        model = kind.from_pretrained(target, attn_implementation="eager", dtype=torch.float32)
        golden = json.loads((target / "golden.json").read_text())
        tokens = numpy.frombuffer((target / "tokens.bin").read_bytes()[1024:], dtype="<u2")
        if variant == "masked":
            how["mask"] = make_mask(100 + number, len(tokens))
            (target / "tokens.mask").write_bytes(how["mask"].tobytes())
        result = train(model, tokens, **how)
        difference = max(abs(result["final_norms"][key] - norm) / norm for key, norm in golden["final_norms"].items())
        written = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
                   f"relative_difference_to_{compared}": difference,
                   **{key: result[key] for key in ("losses", "grad_norms", "final_norms")}}
        (target / f"golden-{variant}.json").write_text(json.dumps(written, indent=1) + "\n")
        print(f"{name}, {variant}: loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}, norms of tensors differ by "
              f"{difference:.1e}")


def deviation(a, b):
    pairs = zip(a["losses"] + a["grad_norms"], b["losses"] + b["grad_norms"])
    return max(abs(x - y) / abs(y) for x, y in pairs)


def without(kind, model, change):
    config = copy.deepcopy(model.config)
    for key, value in change.items() if isinstance(change, dict) else ():
        setattr(config, key, copy.deepcopy(value))
    other = kind(config)
    other.load_state_dict(model.state_dict())
    if not isinstance(change, dict):
        change(other)
    return other


def compare_without(name, kind, model, tokens, result):
    """Largest relative difference of a loss when a property is taken out, for each."""
    differences = {}
    for what, change in PROPERTIES.get(name, {}).items():
        losses = train(without(kind, model, change), tokens)["losses"]
        differences[what] = max(abs(x - y) / abs(y) for x, y in zip(losses, result["losses"]))
        assert differences[what] > MATTERS, f"{name}: {what} moves no loss by more than {differences[what]:.1e}"
    return {"relative_difference_without": differences} if differences else {}


def make_trajectories(folder):
    for number, name, kind, config in models():
        config._attn_implementation = "eager"
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        model = kind(config)
        gemma = name.startswith("gemma")
        set_weights(model, seed=1000 + number, gain=0.0 if gemma else 1.0, sharp=4.0 if name == "gemma2" else 1.0)
        model.save_pretrained(target)
        (target / "generation_config.json").unlink(missing_ok=True)
        tokens = make_tokens(seed=2000 + number)
        write_tokens(target / "tokens.bin", tokens)
        exact = kind(config).double()
        exact.load_state_dict(model.state_dict())
        given = copy.deepcopy(model)
        result = train(model, tokens)
        moved = compare_without(name, kind, given, tokens, result)
        difference = deviation(result, train(exact, tokens))
        golden = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
                  "seq": SEQ, "train": TRAIN, "relative_difference_to_fp64": difference, **moved, **result}
        (target / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
        print(f"{name}: loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}, norms "
              f"{min(result['grad_norms']):.3f}..{max(result['grad_norms']):.3f}, fp64 differs by {difference:.1e}",
              {key: f"{value:.1e}" for key, value in moved.get("relative_difference_without", {}).items()})


def make_storage_samples(folder):
    """One tiny GPT-2 stored in several ways, and what a reader must get from each, as sums over every tensor."""
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    for name, dtype, options in (("sharded-bf16", torch.bfloat16, {"max_shard_size": "2KB"}),
                                 ("single-f16", torch.float16, {})):
        model = transformers.GPT2LMHeadModel(config)
        set_weights(model, seed=3000)
        model = model.to(dtype)
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(target, **options)
        (target / "generation_config.json").unlink(missing_ok=True)
        weights = numpy.arange(1, 1 << 12, dtype=numpy.float64)
        expected = {}
        for key, parameter in sorted(model.named_parameters()):
            values = parameter.detach().double().numpy().reshape(-1)
            expected[key] = {"shape": list(parameter.shape), "sum": float(values.sum()),
                             "weighted_sum": float((values * weights[: values.size]).sum()),
                             "first": float(values[0]), "last": float(values[-1])}
        (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    arguments = [word for word in sys.argv[1:] if not word.startswith("--")]
    folder = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent)
    alone = [word for word in sys.argv[1:] if word.startswith("--")]
    if not alone:
        make_trajectories(folder)
        make_storage_samples(folder)
    if not alone or "--bf16" in alone:
        make_bf16(folder)
    if not alone or "--decay" in alone:
        make_variant(folder, "decay", "matrices", decay_all=True)
    if not alone or "--masked" in alone:
        make_variant(folder, "masked", "all_labels")


if __name__ == "__main__":
    main()
