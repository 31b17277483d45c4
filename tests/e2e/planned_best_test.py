# SPDX-License-Identifier: Apache-2.0
"""What `ballastctl plan` calls the best is: of jobs that a person could write by hand for the same model, batch and memory
(schedule, chunks, groups, micro-batch, slices of long sequences, attention, recomputation, policy, cap, slots, mode, with and
without the planned layers and costs) none is faster by `ballastctl simulate` by more than half a per cent. The best of one
schedule is, too. The planned time and memory are those that are simulated. The soak tries larger shapes and more jobs (BALLAST_TEST_LONG)."""
import json
import os
import subprocess

import ballast

LONG = os.environ.get("BALLAST_TEST_LONG") is not None  # larger shapes, whose searches take a while, and many of them
CASES = int(os.environ.get("BALLAST_TEST_CASES", "10" if LONG else "2"))
TRIES = int(os.environ.get("BALLAST_TEST_TRIES", "300" if LONG else "15"))
SLICE_LEAST = 1024  # tokens of a slice that plan tries without being asked
SCHEDULES = ["gpipe", "1f1b", "eager-1f1b", "interleaved", "grouped-interleaved", "zb-h1", "zb-h2", "zb-v", "v-min",
             "v-half", "v-zb", "1f1b-v", "adaptive", "dualpipe-v"]
TWO = {"interleaved", "grouped-interleaved", "zb-v", "v-min", "v-half", "v-zb", "1f1b-v", "adaptive", "dualpipe-v"}
MARGIN = 0.005


def ctl(folder, *arguments):
    return subprocess.run([ballast.CTL, *arguments, "-o", "json"], env=ballast.environment(folder), text=True, timeout=600,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def model_of(random):
    stages = random.choice([2, 3, 4, 5, 6, 8] if LONG else [2, 2, 3])
    batch = random.choice([8, 12, 16, 24, 32] if LONG else [4, 6])
    inline = ballast.small_inline(hidden=32 * random.randint(1, 4), layers=stages * random.choice([2, 3, 4]),
                                  seq=random.choice([64, 128, 256, *((4096,) if LONG else ())]), vocab=random.choice([256, 512, 2048]))
    return stages, batch, inline


def by_hand(random, stages, batch, seq, planned, only):
    """Settings of one job, on top of the planned one: what does not fit another number of chunks is left out."""
    schedule = only or random.choice(SCHEDULES)
    chunks = 2 if schedule in TWO else 1
    if schedule in ("interleaved", "grouped-interleaved"):
        chunks = random.choice([2, 2, 3, 4])
    micro = random.choice([b for b in range(1, batch + 1) if batch % b == 0])
    slices = random.choice([k for k in (1, 2, 4) if k == 1 or seq // k >= SLICE_LEAST])
    blocks = chunks * slices
    keys = {"pipeline.schedule": schedule, "pipeline.chunks": chunks, "train.micro_batch": micro,
            "train.micro_batches": batch // micro, "pipeline.slices": slices, "pipeline.group": "null", "memory.slots": "null",
            "pipeline.attention": random.choice(["flash", "flash", "naive"]),
            "pipeline.recompute": random.choice(["none", "none", "attention", "full"]),
            "balance.policy": random.choice(["none", "none", "bpipe", "cap", "drop"]), "balance.cap": "null",
            "balance.mode": random.choice(["overlap", "fewest"])}
    if schedule == "grouped-interleaved" and random.random() < 0.5:
        keys["pipeline.group"] = random.randint((stages + 1) // 2, stages)
    if random.random() < 0.4:
        keys["memory.slots"] = random.randint(blocks, 2 * stages * blocks)
    if keys["balance.policy"] != "none":
        keys["balance.cap"] = random.randint(blocks, stages * blocks)
    if chunks != planned["chunks"] or random.random() < 0.3:
        keys["pipeline.layers_per_stage"] = "[]"
    if (chunks, slices) != (planned["chunks"], planned["slices"]) or random.random() < 0.5:
        keys |= {f"pipeline.costs.{kind}": "null" for kind in ("forward", "input", "weight", "recompute", "boundary")}
    if random.random() < 0.5:  # near to the planned one
        kept = random.sample(sorted(keys), random.randint(len(keys) // 2, len(keys) - 1))
        near = {key: value for key, value in keys.items() if key not in kept}
        near["pipeline.slices"] = keys["pipeline.slices"]  # which slots and costs are of
        if "pipeline.chunks" not in near and "pipeline.schedule" not in near:
            micro = ["train.micro_batch", "train.micro_batches"]
            keys = {key: keys[key] for key in near} | ({key: keys[key] for key in micro} if set(micro) & set(near) else {})
    return keys


def parked(stages):
    """The planned job with even layers, and what is more than that many blocks parked at pairs."""
    return [{"pipeline.layers_per_stage": "[]", "memory.slots": "null", "balance.policy": "bpipe", "balance.cap": cap}
            for cap in (stages // 2 + 1, stages // 2 + 2)]


def check_case(folder, random, model=None, only=None):
    stages, batch, inline = model or model_of(random)
    job = ballast.write_job(folder, model=inline, data={"train": [__file__], "format": "text"},
                            train={"micro_batch": 1, "micro_batches": batch}, pipeline={"stages": stages})
    path, limit = os.path.join(folder, "planned.yaml"), None
    if model is None:  # of all schedules, or of one, whose best others may hide
        only = random.choice([None, random.choice(SCHEDULES)])
        if only and ctl(folder, "plan", job, "--schedule", only).returncode != 0:  # as dualpipe-v of few micro-batches
            only = None
    words = ["--schedule", only] if only else []
    free = json.loads(ctl(folder, "plan", job, *words).stdout)["best"]
    share = 0.9 if model else random.choice([None, 0.9, 0.75, 0.6, 0.45, 0.3])
    if share is not None:  # of the blocks of the best without a limit
        limit = int(free["memory_bytes"] - (1 - share) * free["memory"]["slots"])
        words += ["--memory", str(limit)]
    done = ctl(folder, "plan", job, *words, "--write", path)
    name = f"p {stages}, batch {batch}, {inline['layers']} layers of {inline['hidden']}, seq {inline['seq']}, " \
           f"vocab {inline['vocab']}, {only or 'any schedule'}, limit {share} ({limit})"
    best = json.loads(done.stdout)["best"] if done.returncode == 0 else None
    assert done.returncode in (0, 8), (name, done.stderr)
    if best is not None and "order" in best:  # under the policy auto a run measures and chooses
        said = json.loads(ctl(folder, "simulate", path).stdout)
        assert abs(said["step_seconds"] / best["step_seconds"] - 1) < 1e-6, (name, said["step_seconds"], best)
        taken = max(stage["memory_bytes"] for stage in said["stages"])
        assert taken == best["memory_bytes"], (name, taken, best)
    base = path if best is not None else job
    ran = fitted = 0
    beaten, fastest = [], float("inf")
    planned = best or {"chunks": 0, "slices": 0}
    for keys in parked(stages) + [by_hand(random, stages, batch, inline["seq"], planned, only) for _ in range(TRIES)]:
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        done = ctl(folder, "simulate", base, *sets)
        assert done.returncode in (0, 2, 8), (name, keys, done.returncode, done.stderr)
        if done.returncode != 0:
            continue
        made = json.loads(done.stdout)
        ran += 1
        if limit is not None and max(stage["memory_bytes"] for stage in made["stages"]) > limit:
            continue
        fitted += 1
        fastest = min(fastest, made["step_seconds"])
        if best is None or made["step_seconds"] < best["step_seconds"] * (1 - MARGIN):
            gain = 1 - made["step_seconds"] / best["step_seconds"] if best else 1
            beaten.append((gain, max(stage["memory_bytes"] for stage in made["stages"]), keys))
    chosen = {key: best[key] for key in ("schedule", "chunks", "micro_batch", "slices", "recompute", "policy")} if best else None
    print(f"{name}: {chosen}; of {TRIES + 2} by hand {ran} run, {fitted} fit, the fastest takes "
          f"{fastest / best['step_seconds'] if best else float('nan'):.4f} of it", flush=True)
    for gain, memory, keys in sorted(beaten, key=lambda row: -row[0])[:5]:
        print(f"  faster by {100 * gain:.2f} % in {memory:.0f} bytes: {keys}", flush=True)
    return name if beaten else None


def main():
    random = ballast.seed()
    deep = (8, 32, ballast.small_inline(hidden=192, layers=40, seq=256, vocab=300))  # fits with fewer layers on the first stage
    with ballast.scratch() as folder:
        names = [check_case(folder, random, model=deep, only="1f1b"), *(check_case(folder, random) for _ in range(CASES))]
    wrong = [name for name in names if name]
    assert not wrong, wrong


main()
