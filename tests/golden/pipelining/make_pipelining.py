#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden CSV files of this folder with PyTorch and `ballastctl`; ../README.md says what they hold.

    python3 make_pipelining.py build/bin [FOLDER]        (default: the folder of this script)

Every schedule that `ballastctl schedule export` writes is loaded by PyTorch's runtime, as compute_only and as
compute_comms, and both must come to the same: what PyTorch adds to the first is what the second has already.
"""
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.distributed.pipelining import schedules

STAGES, MICRO_BATCHES = 4, 8
# PyTorch has no slices of sequences, and its check wants every micro-batch on every virtual stage.
NOT_THERE = {"seq1f1b", "chimera", "dualpipe"}
TORCH_OWN = {
    "torch-interleaved": (schedules.ScheduleInterleaved1F1B, 2),
    "torch-looped-bfs": (schedules.ScheduleLoopedBFS, 2),
    "torch-interleaved-zb": (schedules.ScheduleInterleavedZeroBubble, 2),
    "torch-zbv": (schedules.ScheduleZBVZeroBubble, 2),
    "torch-dualpipe-v": (schedules.ScheduleDualPipeV, 2),
}


class Stage:
    """What a schedule asks of a stage before it runs."""

    def __init__(self, index, count):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, count, STAGES, 0
        self.is_first, self.is_last = index == 0, index == count - 1
        self.group, self.device, self.has_backward = None, torch.device("cpu"), True
        self.submod, self.dw_builder = torch.nn.Linear(1, 1), None


def runtime(virtual_stages):
    return schedules._PipelineScheduleRuntime([Stage(0, virtual_stages)], MICRO_BATCHES,
                                              loss_fn=lambda output, target: output.sum())


def cells(rows):
    return [[str(action) for action in rows[rank]] for rank in sorted(rows)]


def with_messages(loaded):
    """What PyTorch adds for stages without sharding; with it, UNSHARD and others would move messages about."""
    stage_to_rank = loaded.stage_index_to_group_rank
    rows = {rank: list(row) for rank, row in loaded.pipeline_order.items()}
    rows = schedules._add_send_recv(rows, stage_to_rank=lambda stage: stage_to_rank[stage],
                                    num_stages=loaded._num_stages)
    return cells(schedules._add_wait_send(rows))


def load(path, form):
    text = path.read_text()
    virtual_stages = 1 + max(int("".join(c for c in cell[:cell.index("F")] if c.isdigit()))
                             for row in csv.reader(text.splitlines()) for cell in row if "F" in cell)
    loaded = runtime(virtual_stages)
    loaded._load_csv(str(path), format=form)
    return loaded


def export(ctl, name, form, path):
    subprocess.run([ctl, "schedule", "export", "--schedule", name, "--stages", str(STAGES), "--micro-batches",
                    str(MICRO_BATCHES), "--cost", "10,14,6,2", "--format", form, "--to", str(path)], check=True)


def write(path, rows):
    path.write_text("".join(",".join(row) + "\n" for row in rows))


def check_ours(ctl, folder, scratch):
    listed = json.loads(subprocess.run([ctl, "schedule", "list", "-o", "json"], check=True, capture_output=True).stdout)
    for name in (row["name"] for row in listed):
        if name in NOT_THERE:
            continue
        only, comms = folder / f"{name}.compute_only.csv", scratch / "comms.csv"
        export(ctl, name, "compute_only", only)
        export(ctl, name, "compute_comms", comms)
        by_torch = with_messages(load(only, "compute_only"))
        assert by_torch == cells(load(comms, "compute_comms").pipeline_order_with_comms), name
        write(folder / f"{name}.compute_comms.csv", by_torch)
        assert (folder / f"{name}.compute_comms.csv").read_bytes() == comms.read_bytes(), name
        print(f"{name}: {sum(map(len, by_torch))} cells, the same in both")


def dump_torch(folder):
    for name, (kind, chunks) in TORCH_OWN.items():
        stages = [Stage(k * STAGES, chunks * STAGES) for k in range(chunks)]
        if "v" in name.rpartition("-")[2] and "zb" != name.rpartition("-")[2]:
            stages = [Stage(k * (2 * STAGES - 1), chunks * STAGES) for k in range(chunks)]
        made = kind(stages, MICRO_BATCHES, loss_fn=lambda output, target: output.sum())
        only, comms = folder / f"{name}.compute_only.csv", folder / f"{name}.compute_comms.csv"
        write(only, [["" if action is None else str(action) for action in made.pipeline_order[rank]]
                     for rank in sorted(made.pipeline_order)])
        write(comms, cells(load(only, "compute_only").pipeline_order_with_comms))
        print(f"{name}: written")


def main():
    ctl = str(pathlib.Path(sys.argv[1]) / "ballastctl")
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).parent
    with tempfile.TemporaryDirectory() as scratch:
        check_ours(ctl, folder, pathlib.Path(scratch))
    dump_torch(folder)
    print("PyTorch", torch.__version__)


if __name__ == "__main__":
    main()
