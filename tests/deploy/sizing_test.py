# SPDX-License-Identifier: Apache-2.0
"""docs/sizing.md: units per layer, slots per stage and grace periods are those that ballastctl works out. The memory limit of
a stage's pod is what it holds on this machine and 256 MiB, or a little more."""
import json
import os
import re
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CTL = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin")), "ballastctl")
HIDDEN, HEADS, SEQ, BATCH, STAGES = 256, 4, 128, 2, 4
JOB = f"""\
model: {{family: gpt2, layers: {2 * STAGES}, hidden: {HIDDEN}, heads: {HEADS}, vocab: 256, seq: {SEQ}}}
data: {{train: /usr/share/common-licenses/GPL-3}}
train: {{steps: 1, micro_batch: {BATCH}, micro_batches: 8}}
pipeline: {{stages: {STAGES}}}
"""


def ctl(*words):
    done = subprocess.run([CTL, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def main():
    with open(os.path.join(ROOT, "docs", "sizing.md")) as file:
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in file if line.startswith("|")]
    units = {row[0]: int(row[1]) for row in rows if row[1].isdigit()}
    assert len(units) == 3, units
    with tempfile.TemporaryDirectory(prefix="ballast-sizing-") as folder:
        job = os.path.join(folder, "job.yaml")
        with open(job, "w") as file:
            file.write(JOB)
        # Two layers a stage; those at the ends of the model have a little more.
        for what, sets in (("fused backward, several slots", ["pipeline.schedule=1f1b"]),
                           ("split backward", ["pipeline.schedule=zb-h1"]),
                           ("fused backward, attention made again", ["pipeline.recompute=attention"])):
            for size, more in ((4, []), (2, ["train.dtype=bf16"])):
                words = [word for value in [*sets, *more] for word in ("--set", value)]
                stage = json.loads(ctl("simulate", job, *words, "-o", "json"))["stages"][1]
                said = (2 * units[what] - 1) * BATCH * SEQ * HIDDEN * size
                scores = 0 if "again" in what else 2 * BATCH * HEADS * SEQ * SEQ * size
                ratio = stage["slot_bytes"] / (said + scores)
                assert 0.99 < ratio < 1.02, (what, size, stage["slot_bytes"], said, scores, ratio)
        stages = json.loads(ctl("simulate", job, "-o", "json"))["stages"]
        slots = [stage["peak_slots"] for stage in stages]
        assert slots == [STAGES - s for s in range(STAGES)], slots
        said = ctl("render", job, "--output", os.path.join(folder, "out"), "--name", "size", "--disk-rate", "1 MB")
        with open(os.path.join(folder, "out", "kustomization.yaml")) as file:
            limit = max(int(mib) for mib in re.findall(r"limits/memory, value: (\d+)Mi", file.read())) << 20
        held = max(stage["memory_bytes"] for stage in stages) + (256 << 20)
        assert held <= limit < 1.1 * held, (held, limit)
        grace, shard = int(re.search(r"takes (\d+) s at most", said).group(1)), re.search(r": ([\d.]+) MiB to write", said)
        layer = 12 * HIDDEN ** 2 + 13 * HIDDEN
        assert abs(float(shard.group(1)) * 2 ** 20 - 12 * 2 * layer) < 0.15 * 12 * 2 * layer, said
        assert abs(grace - 60 - float(shard.group(1)) * 2 ** 20 / 1e6) <= 1, said
    print("ok docs/sizing.md: units, slots, memory limits and grace periods")


main()
