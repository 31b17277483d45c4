#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ballast_torch.profile: profiles of PyTorch's 1F1B, of an order with split backward passes and of two micro-batches
over gloo on four ranks; ballastctl simulates, replays, plans and estimates with them; bytes of blocks are those of
attach; times of made-up operations are as they were made up, also by clocks of two machines."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import BIN, a_store, need_torch, scratch  # noqa: E402

need_torch()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from ballast import write_job  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # noqa: E402

import ballast_torch as bt  # noqa: E402
from ballast_torch.demo import Block  # noqa: E402

profiles = sys.modules["ballast_torch.profile"]

RANKS, COUNT = 4, 8
MODEL = {"layers": 8, "hidden": 64, "heads": 4, "vocab": 256, "seq": 128}


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, MODEL["hidden"]), nn.Embedding(MODEL["seq"], MODEL["hidden"])

    def forward(self, x):
        return self.tokens(x) + self.places.weight


def make_part(stage, stages):
    """Stage of the model: its layers, with the embedding before the first and the head behind the last."""
    parts = [Block(MODEL["hidden"], MODEL["heads"]) for _ in range(MODEL["layers"] // stages)]
    before = [Embedding()] if stage == 0 else []
    behind = [nn.LayerNorm(MODEL["hidden"]), nn.Linear(MODEL["hidden"], 256, bias=False)] if stage + 1 == stages else []
    return nn.Sequential(*before, *parts, *behind)


def loss(y, target):
    return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())


class Trainer:
    def __init__(self, order, rank, rows):
        count = order.num_stages if order is not None else RANKS
        self.held = order.placement[rank] if order is not None else (rank,)
        self.last, self.rows = count - 1 in self.held, rows
        stages = [PipelineStage(make_part(i, count), i, count, torch.device("cpu")) for i in self.held]
        self.schedule = (order.runtime(stages, loss_fn=loss) if order is not None else
                         Schedule1F1B(stages[0], COUNT, loss_fn=loss))
        self.optimizer = torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()])
        self.x = torch.randint(256, (COUNT * rows, MODEL["seq"]))

    def step(self):
        arguments, keywords = (self.x,) if 0 in self.held else (), {"target": self.x} if self.last else {}
        self.schedule.step(*arguments, **keywords)
        self.optimizer.step()
        self.optimizer.zero_grad()


def run(rank, folder, order, address):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{folder}/init")
    for name, kind, rows in (("fused", None, 2), ("fused-4", None, 4), ("split", order, 2)):
        trainer = Trainer(kind, rank, rows)
        before = dict(vars(trainer.schedule))
        made = bt.profile(trainer.schedule, trainer.step, file=f"{folder}/{name}.json", micro_batch=rows, tied=False,
                          steps=3, **MODEL)
        assert vars(trainer.schedule).keys() == before.keys() and "forward_one_chunk" not in vars(
            (getattr(trainer.schedule, "_stages", None) or [trainer.schedule._stage])[0]), "something is left behind"
        if rank == 0:
            with open(f"{folder}/{name}.json") as file:
                assert json.load(file) == made
        if name == "fused":
            with bt.Store(address, job="bytes", rank=rank, size="64 MiB") as store:
                attachment = bt.attach(trainer.schedule, store)
                trainer.step()
                blocks = store.stats()["held_peak"] / attachment.residency.without
                attachment.detach()
            slot = made["stages"][rank]["slot_bytes"]
            assert abs(slot - blocks) <= 0.05 * slot, (rank, slot, blocks)
    mistakes(trainer)
    dist.destroy_process_group()


def mistakes(trainer):
    for words, options in (("family: 'bert'", {"family": "bert"}), ("dtype: 'fp8'", {"dtype": "fp8"}),
                           ("ffn: a llama", {"family": "llama"}), ("steps: 0", {"steps": 0}),
                           ("stage_layers: [2, 2, 2] are not 8 layers on 8 stages", {"stage_layers": [2, 2, 2]}),
                           ("stage_layers: [8, 0, 0, 0]", {"stage_layers": [8, 0, 0, 0]})):
        try:
            bt.profile(trainer.schedule, trainer.step, micro_batch=2, **MODEL, **options)
        except ValueError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)


def ballastctl(*arguments, expect=0):
    done = subprocess.run([os.path.join(BIN, "ballastctl"), *arguments], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.stdout[-2000:], done.stderr)
    return json.loads(done.stdout) if expect == 0 else done.stderr


def make_job(folder, schedule, rows, **model):
    inline = {"init": None, "family": "gpt2", "tied": False, **MODEL, **model}
    return write_job(folder, f"{schedule}-{rows}.json", model=inline,
                     train={"micro_batch": rows, "micro_batches": COUNT},
                     pipeline={"stages": RANKS, "schedule": schedule, "attention": "flash", "threads": 1})


def busy(made):
    """Seconds that the busiest rank computes in a step."""
    of = [0.0] * RANKS
    for chunk in made["chunks"]:
        of[chunk["stage"]] += COUNT * (chunk["F"] + chunk["I"] + chunk["W"])
    return max(of)


def check_simulated(folder, name, schedule, rows):
    with open(f"{folder}/{name}.json") as file:
        made = json.load(file)
    job = make_job(folder, schedule, rows)
    shown = ballastctl("simulate", job, "--profile", f"{folder}/{name}.json", "-o", "json")
    assert not [text for text in shown.get("warnings", ()) if "cores" not in text], shown["warnings"]
    least, seconds = busy(made), shown["step_seconds"]
    print(f"ok {name}: measured {1e3 * made['step']:.1f} ms a step, simulated {1e3 * seconds:.1f} ms; busiest rank "
          f"{1e3 * least:.1f} ms, cores {made['cores']}, boundary {1e6 * made['boundary']:.0f} us", flush=True)
    # Others on this machine make a step longer than it would be, never shorter.
    assert least <= seconds < 1.5 * made["step"], (least, seconds, made["step"])
    assert made["step"] >= made["makespan"] and made["between"] >= 0 and len(made["stages"]) == RANKS
    return made, job


def main(folder):
    order = bt.schedule("v-half", RANKS, COUNT)
    with a_store(folder) as store:
        mp.start_processes(run, (folder, order, store.address), nprocs=RANKS, start_method="fork")
    fused, job = check_simulated(folder, "fused", "1f1b", 2)
    split, v_job = check_simulated(folder, "split", "v-half", 2)
    assert not fused["split_backward"] and split["split_backward"] and split["schedule"] == "v-half"
    assert [chunk["measured_I"] for chunk in fused["chunks"] + split["chunks"]] == [False] * 4 + [True] * 8
    assert [chunk["stage"] for chunk in split["chunks"]] == [0, 1, 2, 3, 3, 2, 1, 0]
    shown = ballastctl("simulate", job, "--profile", f"{folder}/fused.json", "--replay", "-o", "json")
    print(f"ok replay: {1e3 * fused['replay_makespan']:.1f} ms measured, {1e3 * shown['step_seconds']:.1f} ms replayed")
    plan = ballastctl("plan", v_job, "--profile", f"{folder}/split.json", "-o", "json")
    assert plan["best"]["step_seconds"] > 0, plan["best"]
    print(f"ok plan: {plan['best']['schedule']}")
    estimate = ballastctl("estimate", "--profile", f"{folder}/fused.json", "--profile", f"{folder}/fused-4.json",
                          "--batch", "64", "-o", "json")
    assert (estimate["from"], estimate["to"]) == (2, 4) and not estimate["warnings"], estimate
    print(f"ok estimate: {estimate['speedup']:.2f} from 2 to 4 sequences")
    other = make_job(folder, "1f1b", 3, hidden=128)
    assert "another model" in ballastctl("simulate", other, "--profile", f"{folder}/fused.json", expect=2)


def check_made_up():
    """Two ranks, one micro-batch: F, F, B, B of 1, 2, 4 and 2 s, messages of 0.25 s; rank 1's clock is 100 s ahead."""
    def rank(machine, ahead, *operations):
        steps = [profiles.Operation(kind, stage, 0, begin + ahead, end + ahead, end - begin)
                 for kind, stage, begin, end in operations]
        return profiles._Rank(machine, 1, 1, [ahead, 1 + ahead], {operations[0][1]: 7}, [10.0], [steps])

    for ahead, machines, cores in ((0, "aa", 1), (100, "ab", 0)):
        ranks = [rank(machines[0], 0, ("F", 0, 0.0, 1.0), ("B", 0, 7.5, 9.5)),
                 rank(machines[1], ahead, ("F", 1, 1.25, 3.25), ("B", 1, 3.25, 7.25))]
        made = profiles._document(ranks, profiles.Model("gpt2", 2, 8, 2, 2, 4, 32, 16, 4, False), [1, 1], 0.25, {
            "schedule": "1f1b", "micro_batch": 1, "attention": "flash", "recompute": "none", "dtype": "fp32",
            "device": "host", "micro_batches": 1})
        found = {key: made[key] for key in ("step", "makespan", "between", "boundary", "cores")}
        assert found == {"step": 10, "makespan": 9.5, "between": 0.5, "boundary": 0.25, "cores": cores}, found
        assert [[chunk[key] for key in "FIW"] for chunk in made["chunks"]] == [[1, 0.5, 1.5], [2, 1, 3]], made["chunks"]
        stages = [[stage[key] for key in ("slot_bytes", "step_end", "times")] for stage in made["stages"]]
        assert stages == [[7, 9.5, [1, 2]], [7, 7.25, [2, 4]]], stages
    print("ok made-up operations")


if __name__ == "__main__":
    check_made_up()
    with scratch() as folder:
        main(folder)
