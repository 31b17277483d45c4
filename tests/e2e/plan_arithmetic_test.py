# SPDX-License-Identifier: Apache-2.0
"""Plans of published models against arithmetic that is done here anew: bytes of every device of GPT-3 96B and 134B and of
LLaMA 65B by Korthikanti et al. (arXiv 2205.05198), and what a copy of a block and a boundary take between two nodes and
inside one, from bytes over bandwidth."""
import json
import os
import subprocess

import ballast

EXAMPLES = os.path.join(ballast.ROOT, "examples")
GIB = 2 ** 30
MODELS = {  # layers, hidden, heads, width of the feed-forward network, vocabulary
    "gpt3-96b": (80, 9984, 104, 4 * 9984, 51200), "gpt3-134b": (88, 11264, 88, 4 * 11264, 51200),
    "llama-65b": (80, 8192, 64, 22016, 32000)}
SEQ = 2048


def ctl(folder, *arguments):
    done = subprocess.run([ballast.CTL, *arguments], env=ballast.environment(folder), text=True, timeout=600,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (arguments, done.returncode, done.stderr)
    return json.loads(done.stdout)


def parameters(name, layers, first, last):
    _, h, _, f, vocab = MODELS[name]
    if name.startswith("gpt3"):  # biases, two vectors a norm; learned positions; the head is the embedding again
        layer = 4 * h * h + 2 * h * f + 4 * h + f + h + 4 * h
        return layers * layer + first * (vocab + SEQ) * h + last * (2 * h + vocab * h)
    return layers * (4 * h * h + 3 * h * f + 2 * h) + first * vocab * h + last * (h + vocab * h)


def layer_bytes(name, b, t, sequence, recompute, attention):
    """Table 2 of the paper; LLaMA counted in the same way: no dropout, gate, up and their product."""
    _, h, a, f, _ = MODELS[name]
    sbh = SEQ * b * h
    if recompute == "full":
        return 2 * sbh / (t if sequence else 1)
    scores = a * SEQ / h if attention == "naive" and recompute == "none" else 0
    if name.startswith("gpt3"):
        whole, split = 10, 24 + 5 * scores
    else:
        whole, split = 8, 8 + 6 * f / h + 2 * scores
    return sbh * (whole / (t if sequence else 1) + split / t)


def device_bytes(name, stage, p, layers, b, t, blocks, best, sequence):
    """In k slices a block is a k-th; keys and values of every block stay, and while a sequence goes back, gradients of all
    slices but the last."""
    _, h, _, _, vocab = MODELS[name]
    k = best["slices"]
    sbh = SEQ * b * h / k
    block = layers * layer_bytes(name, b, t, sequence, best["recompute"], best["attention"]) / k
    if stage == 0 and name.startswith("gpt3"):
        block += sbh / t  # mask of the embedding's dropout
    total = 18 * parameters(name, layers, stage == 0, stage == p - 1) / t + blocks * block
    total += 2 * 2 * sbh / t  # one tensor on its way in each direction
    if stage == p - 1:
        total += 4 * sbh / t * (1 + vocab / h)
    if best["recompute"] == "full":  # one layer is made again
        total += layer_bytes(name, b, t, sequence, "none", best["attention"]) / k
    if k > 1:
        total += layers * 2 * sbh / t * (2 * (p - stage + k - 1) + 4 * (k - 1))
    return total


def check_memory(folder, name, nodes, p, t, b, attention, *words, slices=1):
    path = os.path.join(EXAMPLES, "llama-65b.yaml" if name == "llama-65b" else "gpt3-96b.yaml")
    sets = []
    if name == "gpt3-134b":
        for key, value in zip(("layers", "hidden", "heads"), MODELS[name]):
            sets += ["--set", f"model.{key}={value}"]
    plan = ctl(folder, "plan", path, *sets, "--nodes", nodes, "--hardware", "a100-80g", "--stages", str(p), "--tensor",
               str(t), "--micro-batch", str(b), "--slices", str(slices), "--schedule", "1f1b", "--attention", attention,
               "-o", "json", *words)
    best = plan["best"]
    assert sum(best["layers"]) == MODELS[name][0] and best["data"] == 1 and len(best["layers"]) == p, best
    assert best["slices"] == slices, best
    if best["policy"] == "none":
        said = best["stage_memory_bytes"]
        for stage in range(p):  # of 1f1b: p - s blocks, and in slices all of one sequence
            blocks = p - stage + slices - 1
            mine = device_bytes(name, stage, p, best["layers"][stage], b, t, blocks, best, "--sequence" in words)
            assert abs(said[stage] / mine - 1) < 1e-9, (name, stage, said[stage] / GIB, mine / GIB, best)
        assert best["memory_bytes"] == max(said) <= plan["memory_bytes"], best
    else:  # own and lent blocks: as many on every device as the cap, or fewer; kept inputs of those that are made again
        for stage in range(p):
            mine = device_bytes(name, stage, p, best["layers"][stage], b, t, best["cap"], best, "--sequence" in words)
            gone = max(0, p - stage - best["cap"]) if best["dropped"] else 0
            mine += gone * 2 * SEQ * b * MODELS[name][1] / (t if "--sequence" in words else 1)
            said = best["stage_memory_bytes"][stage]
            assert said <= mine * (1 + 1e-9), (name, stage, said / GIB, mine / GIB, best)
            if best["policy"] == "drop" and gone:
                assert said >= mine * (1 - 1e-9), (name, stage, said / GIB, mine / GIB, best)
    print(f"{name}, t {t}, p {p}, b {b}, slices {slices}, {attention}, recompute {best['recompute']}, {best['policy']}: "
          f"stage {best['memory_stage']} has {best['memory_bytes'] / GIB:.2f} GiB")
    return best


def spans(path, stage, line):
    with open(path) as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["pid"] == stage and e["tid"] == line]
    return sorted(events, key=lambda event: event["ts"])


def check_copies(folder):
    """Four stages on two nodes, a copy alone on its way: bytes of the block over what the link makes, and its latency."""
    layers, hidden, heads, seq, gbps = 2, 1024, 16, 1024, 40
    job = ballast.write_job(folder, model={**ballast.small_inline(hidden, 4 * layers, seq), "heads": heads},
                            data={"train": [__file__], "format": "text"}, train={"micro_batch": 1, "micro_batches": 4},
                            pipeline={"stages": 4, "attention": "flash"}, balance={"policy": "bpipe", "cap": 3})
    trace = os.path.join(folder, "simulated.json")
    block = layers * 34 * seq * hidden + seq * hidden  # stage 0: with the mask of the embedding's dropout
    rates = {"sequential": gbps * 1e9 / 8, "pair-adjacent": 300e9}  # 0 and 3 on two nodes, or on one with NVLink
    for order, rate in rates.items():
        said = ctl(folder, "simulate", job, "--hardware", "a100-80g", "--nodes", "2x2", "--inter-gbps", str(gbps), "--order",
                   order, "--set", f"pipeline.layers_per_stage={[layers] * 4}", "--perfetto", trace, "-o", "json")
        copies = [event for event in spans(trace, 0, 2) if event["name"][1] in "EL"]
        assert len(copies) == said["stages"][0]["evictions"] + said["stages"][0]["loads"] > 0, said["stages"][0]
        shortest = min(event["dur"] for event in copies) * 1e-6
        mine = 10e-6 + block / (0.75 * rate)
        assert abs(shortest / mine - 1) < 2e-3, (order, shortest, mine)
        # The first forward of stage 1 starts when the tensor has come: inside a node by `sequential`, else from another.
        tensor = 2 * seq * hidden
        link = 300e9 if order == "sequential" else gbps * 1e9 / 8
        first, second = spans(trace, 0, 0)[0], spans(trace, 1, 0)[0]
        gap = (second["ts"] - first["ts"] - first["dur"]) * 1e-6
        assert abs(gap - (10e-6 + tensor / (0.75 * link))) < 2e-6, (order, gap, 10e-6 + tensor / (0.75 * link))
        print(f"{order}: a copy of {block} bytes takes {shortest * 1e6:.0f} us, a tensor of {tensor} {gap * 1e6:.1f} us")


def main():
    with ballast.scratch() as folder:
        assert check_memory(folder, "gpt3-96b", "6x8", 12, 4, 1, "naive")["policy"] != "drop"
        check_memory(folder, "gpt3-96b", "6x8", 6, 8, 1, "naive")
        check_memory(folder, "gpt3-96b", "6x8", 6, 8, 1, "naive", "--sequence")
        check_memory(folder, "gpt3-134b", "6x8", 6, 8, 1, "flash", "--sequence")
        check_memory(folder, "gpt3-134b", "6x8", 24, 2, 1, "naive")
        check_memory(folder, "llama-65b", "4x8", 8, 4, 1, "flash")
        check_memory(folder, "llama-65b", "4x8", 4, 8, 2, "naive")
        check_memory(folder, "llama-65b", "4x8", 4, 8, 2, "naive", "--sequence")
        for slices in (2, 8):
            assert check_memory(folder, "gpt3-96b", "6x8", 12, 4, 1, "naive", slices=slices)["policy"] == "none"
        check_memory(folder, "llama-65b", "4x8", 4, 8, 1, "naive", "--sequence", slices=4)
        check_copies(folder)


main()
