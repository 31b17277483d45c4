# SPDX-License-Identifier: Apache-2.0
"""The losses and gradient norms of a run have the same bits for 1, 2, 3 and 4 stages, gpipe and 1f1b, shm and tcp,
started by one command or as separate services, and for every kind of recomputation, whose slots are as few and as small
as planned."""
from ballast import LONG, run_job, losses, scratch, shared_memory_files, assert_nothing_left, stages, write_job


def recompute(folder, attention, reference):
    """All kinds of recomputation on 2 stages, gpipe: the same bits, slots that shrink, one slot when nothing is kept."""
    slot_bytes = {}
    for kind in ("none", "attention", "full"):
        pipeline = {"stages": 2, "schedule": "gpipe", "attention": attention, "recompute": kind}
        report, _ = run_job(folder, write_job(folder, pipeline=pipeline), "--local")
        reference = reference or losses(report)
        assert losses(report) == reference, f"{attention}, recompute {kind}: {losses(report)} != {reference}"
        for event in report:
            for stage in event.get("stages", []):
                assert stage["peak_slots"] == stage["own_slots"] == (1 if kind == "full" else 4), stage
                assert stage["lost"] == stage["dropped"] == stage["recomputed"] == 0, stage  # these are of balancing
                if stage["stage"] == 0:
                    slot_bytes[kind] = stage["peak_slot_bytes"] / stage["peak_slots"]
        print(f"ok recompute {kind}, {attention}: slots of {slot_bytes[kind]:.0f} bytes")
    assert slot_bytes["attention"] < slot_bytes["none"]


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        settings = [(1, "1f1b", "auto"), (1, "gpipe", "auto"), (2, "1f1b", "shm"), (2, "1f1b", "tcp"),
                    (2, "gpipe", "shm"), (3, "1f1b", "shm"), (3, "gpipe", "tcp")]
        reference = None
        for count, schedule, path in settings:
            job = write_job(folder, pipeline={"stages": count, "schedule": schedule}, balance={"data_path": path})
            report, _ = run_job(folder, job, "--local")
            bits = losses(report)
            reference = reference or bits
            assert len(bits) == 6 and bits == reference, f"{count} stages, {schedule}, {path}: {bits} != {reference}"
            for event in report:
                if event["event"] != "step":
                    continue
                assert [stage["stage"] for stage in event["stages"]] == list(range(count))
                for stage in event["stages"]:
                    expected = min(4, count - stage["stage"]) if schedule == "1f1b" else 4
                    assert stage["peak_slots"] == expected, f"{schedule}, {count} stages: {stage}"
                    assert stage["peak_slots"] <= stage["own_slots"]
            print(f"ok {count} stages, {schedule}, {path}: loss {report[-1]['loss']:.6f}")
            assert_nothing_left(folder, [], shared)

        recompute(folder, "naive", reference)
        recompute(folder, "flash", None)

        with stages(folder, 3) as services:
            job = write_job(folder, pipeline={"stages": 3}, services={"stages": [s.address for s in services]})
            for _ in range(2):  # the same services run one job after the other
                report, _ = run_job(folder, job)
                assert losses(report) == reference, "separate services"
        print("ok 3 separate services, twice")

        # Four stages need four layers: a model from nothing, tied, uneven, against one stage.
        inline = {"init": None, "family": "gpt2", "layers": 5, "hidden": 48, "heads": 3, "vocab": 128, "seq": 32}
        bits = []
        for pipeline in ({"stages": 1}, {"stages": 4}, {"stages": 2, "schedule": "gpipe", "chunks": 2},
                         {"stages": 3, "layers_per_stage": [3, 1, 1]}):
            job = write_job(folder, model=inline, pipeline=pipeline)
            report, _ = run_job(folder, job, "--local", "--set", "pipeline.attention=flash")
            bits.append(losses(report))
            assert bits[-1] == bits[0], f"{pipeline}"
            print(f"ok inline model, {pipeline}")

        # Every schedule that trains, several chunks a stage, the tip of a V inside a stage, embedding and tied head apart or
        # together. The short version leaves to combinations_test.py what others do.
        deep = {**inline, "layers": 8, "hidden": 32, "heads": 2}
        train = {"steps": 3, "micro_batch": 1, "micro_batches": 8}
        reference = None
        others = ("gpipe", "eager-1f1b", "grouped-interleaved", "zb-h1", "zb-h2", "v-min", "v-half", "v-zb", "1f1b-v", "adaptive")
        for schedule in ("1f1b", "interleaved", "zb-v", "dualpipe-v", *(others if LONG else ())):
            job = write_job(folder, model=deep, train=train, pipeline={"stages": 4, "schedule": schedule})
            report, _ = run_job(folder, job, "--local")
            reference = reference or losses(report)
            assert losses(report) == reference, f"{schedule}"
            print(f"ok {schedule}: slots {[stage['peak_slots'] for stage in report[-1]['stages']]}")
        split = ("zb-h1", "dualpipe-v") if LONG else ()
        for schedule in ("1f1b", "interleaved", *split, "zb-v"):  # R with fused and split backwards, V's and loops
            job = write_job(folder, model=deep, train=train,
                            pipeline={"stages": 4, "schedule": schedule, "recompute": "full"})
            report, _ = run_job(folder, job, "--local")
            assert losses(report) == reference, f"{schedule}, recompute full"
            print(f"ok {schedule}, recompute full: slots {[stage['peak_slots'] for stage in report[-1]['stages']]}")
        report, _ = run_job(folder, job, "--local", "--set", "memory.slots=1")  # zb-v: an order for what is there
        assert losses(report) == reference, f"{schedule}, recompute full in one slot"
        assert all(stage["peak_slots"] == 1 for stage in report[-1]["stages"]), report[-1]
        print(f"ok {schedule}, recompute full in one slot")


main()
