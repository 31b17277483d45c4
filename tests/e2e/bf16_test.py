# SPDX-License-Identifier: Apache-2.0
"""A run in bf16 has the same bits for 1, 2 and 3 stages, every path, fused and split schedules, the tip of a V inside a
stage and every kind of recomputation; its slots take half the bytes of fp32; its losses are near those of fp32 and not equal
to them; and it goes on from a checkpoint bit for bit."""
import os

from ballast import run_job, losses, scratch, shared_memory_files, assert_nothing_left, write_job

MODEL = {"init": None, "family": "gpt2", "layers": 6, "hidden": 64, "heads": 2, "vocab": 128, "seq": 64}
TRAIN = {"steps": 4, "micro_batch": 1, "micro_batches": 6, "dtype": "bf16"}


def slot_bytes(report):
    return [stage["peak_slot_bytes"] / stage["peak_slots"]
            for stage in [event for event in report if event["event"] == "step"][-1]["stages"]]


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        def run(pipeline, *more, train=TRAIN, **sections):
            job = write_job(folder, model=MODEL, train=train, pipeline=pipeline, **sections)
            return run_job(folder, job, "--local", *more)[0]

        single = run({"stages": 1})
        wide = run({"stages": 1}, train={**TRAIN, "dtype": "fp32"})
        reference = losses(single)
        for ours, theirs in zip(single, wide):
            if ours["event"] == "step":
                assert ours["loss"] != theirs["loss"], ours
                assert abs(ours["loss"] - theirs["loss"]) < 0.01 * theirs["loss"], (ours["loss"], theirs["loss"])
        share = slot_bytes(single)[0] / slot_bytes(wide)[0]
        assert 0.5 <= share < 0.52, share
        print(f"ok near fp32, slots of {share:.4f} of its bytes")

        for pipeline, path in (({"stages": 2}, "shm"), ({"stages": 3}, "tcp"), ({"stages": 3, "schedule": "gpipe"}, "shm"),
                               ({"stages": 3, "schedule": "zb-h1"}, "shm"), ({"stages": 3, "schedule": "zb-v"}, "shm"),
                               ({"stages": 2, "recompute": "attention"}, "shm"),
                               ({"stages": 2, "recompute": "full"}, "shm")):
            report = run(pipeline, balance={"data_path": path})
            assert losses(report) == reference, f"{pipeline}, {path}"
            print(f"ok {pipeline}, {path}")

        kept = {"folder": os.path.join(folder, "kept"), "every": 2}
        steady = {**TRAIN, "lr_schedule": "constant"}  # a rate that does not depend on --steps
        whole = run({"stages": 1}, train=steady)
        run({"stages": 2}, "--steps", "2", train=steady, checkpoint=kept)
        resumed = run({"stages": 3}, "--resume", train=steady, checkpoint=kept)
        found = [(event["step"], event["loss"], event["grad_norm"]) for event in resumed if event["event"] == "step"]
        expected = [(event["step"], event["loss"], event["grad_norm"]) for event in whole if event["event"] == "step"]
        assert found == expected[2:], (found, expected)
        print("ok resumed on another number of stages")
        assert_nothing_left(folder, [], shared)


main()
