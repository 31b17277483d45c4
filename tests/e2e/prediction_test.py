# SPDX-License-Identifier: Apache-2.0
"""Predictions beside real runs: peak slots and block bytes that `ballastctl simulate` says are exactly those of the
report, for several schedules; a profile that a run records, read by simulate, by another run and by estimate, and
refused for another model. Times are not judged here: tools/bench/prediction.py does that."""
import json
import os
import subprocess

import ballast

SHAPES = [("1f1b", {}, 2), ("gpipe", {"recompute": "attention"}, 2), ("interleaved", {}, 2), ("zb-h1", {}, 2),
          ("v-half", {}, 2), ("1f1b", {"recompute": "full"}, 3), ("1f1b", {"attention": "flash"}, 1)]
# Policies: 1f1b on four stages keeps 4, 3, 2, 1 blocks where nothing moves.
POLICIES = [("1f1b", {"policy": "bpipe"}, 4), ("1f1b", {"policy": "cap", "cap": 3, "mode": "fewest"}, 4),
            ("interleaved", {"policy": "cap", "cap": 9}, 4), ("1f1b", {"policy": "drop", "cap": 3}, 4)]


def ctl(folder, *arguments, expect=0):
    done = subprocess.run([ballast.CTL, *arguments], env=ballast.environment(folder), text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def check_peaks(folder, place, schedule, keys, stages, balance=None):
    job = ballast.write_job(folder, model=ballast.small_inline(layers=8, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"steps": 2, "micro_batches": 8},
                            pipeline={"stages": stages, "schedule": schedule, **keys}, balance=balance or {})
    predicted = json.loads(ctl(folder, "simulate", job, "-o", "json").stdout)
    report, _ = ballast.run_job(folder, job, *place(stages, stores=balance is not None))
    for event in report:
        for plan, real in zip(predicted["stages"], event["stages"]):
            assert plan["peak_slots"] == real["peak_slots"], (schedule, keys, plan, real)
            assert plan["peak_slot_bytes"] == real["peak_slot_bytes"], (schedule, keys, plan, real)
            if real["lost"] + real["dropped"] == 0:  # else a block was made again instead
                assert (plan["evictions"], plan["loads"]) == (real["evicted"], real["loaded"]), (schedule, plan, real)
            assert real["lost"] or plan["recomputed"] == real["recomputed"], (schedule, keys, plan, real)
    if balance:
        cells = [cell for row in predicted["order"] for cell in row]
        assert any(op_type in cell for cell in cells for op_type in ("R" if balance["policy"] == "drop" else "E")), cells
    for stage in predicted["stages"]:
        whole = stage["busy_seconds"] + sum(stage["stall_seconds"].values())
        assert abs(whole / predicted["operations_seconds"] - 1) < 1e-6, stage
    print(schedule, keys, balance, stages, [stage["peak_slots"] for stage in predicted["stages"]])


def check_automatic(folder):
    """Under auto, too, whatever it goes over to: every step has the peaks that were predicted for its limit."""
    job = ballast.write_job(folder, model=ballast.small_inline(layers=8, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"steps": 12, "micro_batches": 8},
                            pipeline={"stages": 4}, balance={"policy": "auto"})
    for keys in (["memory.slots=3"], ["memory.slots=2", "pipeline.recompute=attention"]):
        sets = [word for key in keys for word in ("--set", key)]
        predicted = json.loads(ctl(folder, "simulate", job, "-o", "json", *sets).stdout)
        report, _ = ballast.run_job(folder, job, "--local", *sets)
        for event in report:
            for plan, real in zip(predicted["stages"], event["stages"]):
                assert plan["peak_slots"] == real["peak_slots"], (keys, event["step"], plan, real)
                assert plan["peak_slot_bytes"] == real["peak_slot_bytes"], (keys, event["step"], plan, real)
        print("auto", keys, [stage["peak_slots"] for stage in predicted["stages"]],
              "versions", sorted({event["policy_version"] for event in report}))


def check_picture(folder, job):
    """A simulated step as a trace: what the simulation says, operation for operation, evictions on a line of their own."""
    path = os.path.join(folder, "simulated.json")
    sets = ["--set", "balance.policy=bpipe", "--set", "memory.slots=3", "--set", "pipeline.stages=4"]
    said = json.loads(ctl(folder, "simulate", job, "--perfetto", path, "-o", "json", *sets).stdout)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    for stage, row in enumerate(said["order"]):
        mine = [event for event in spans if event["pid"] == stage]
        assert sorted(e["name"] for e in mine if e["cat"] == "operation") == sorted(row), stage
        busy = sum(e["dur"] for e in mine if e["tid"] == 0) * 1e-6
        waits = sum(e["dur"] for e in mine if e["cat"] == "wait") * 1e-6
        assert abs(busy / said["stages"][stage]["busy_seconds"] - 1) < 1e-3, (stage, busy)
        assert abs((busy + waits) / said["operations_seconds"] - 1) < 1e-3, (stage, busy, waits)
        assert {e["name"][1] for e in mine if e["tid"] == 2} == ({"E", "L"} if stage == 0 else set()), mine
        slots = [e["args"]["slots"] for e in events if e["ph"] == "C" and e["pid"] == stage]
        assert slots[-1] == 0 and max(slots) <= said["stages"][stage]["peak_slots"], (stage, slots)
    for words, reason in ((("--perfetto", os.path.join(folder, "no", "x.json")), "no/x.json"),):
        assert reason in ctl(folder, "simulate", job, *words, expect=3).stderr, words


def check_uses(folder, job, profile, recorded):
    """What a profile says nothing of is refused, what it says nearly is warned of, in one line that names the field."""
    simulate, plan = ("simulate", job, "--profile", profile), ("plan", job, "--profile", profile)
    other = os.path.join(folder, "other.json")
    for words, said in (((*simulate, "--set", "train.dtype=bf16"), "dtype is fp32, the job's train.dtype is bf16"),
                        ((*plan, "--set", "train.dtype=bf16"), "dtype is fp32, the job's train.dtype is bf16"),
                        (("run", job, "--local", "--predict", profile, "--set", "train.dtype=bf16"), "dtype is fp32"),
                        ((*simulate, "--replay", "--set", "pipeline.schedule=gpipe"), "schedule is 1f1b, the job's is gpipe"),
                        ((*simulate, "--replay", "--set", "train.micro_batch=16"), "micro_batch is 2, the job's")):
        refused = ctl(folder, *words, expect=2).stderr
        assert said in refused and profile in refused and "ballastctl run JOB --profile FILE" in refused, refused
    for words, said in (((*simulate, "--set", "pipeline.threads=2"), "threads is 1, the job's pipeline.threads 2"),
                        ((*simulate, "--set", "pipeline.attention=flash"), "attention is naive, the job's pipeline.attention"),
                        ((*plan, "--attention", "flash", "--micro-batch", "2"), "attention is naive")):
        done = ctl(folder, *words, "-o", "json")
        warnings = json.loads(done.stdout)["warnings"]
        assert len(warnings) == 1 and said in warnings[0], warnings
        assert done.stderr == f"warning: {warnings[0]}\n", done.stderr
    for changes, said in (({"F": 1e308, "I": 1e308, "W": 1e308}, "chunks[0].F must be from 1e-12 to 1e+06 seconds"),
                          ({"F": 0}, "chunks[0].F must be from 1e-12"), ({"layers": 0}, "chunks[0].layers must be from 1"),
                          ({"layers": 3}, "chunks[1].first_layer must be 3"), ({"stage": 1}, "stages[0].chunks")):
        with open(other, "w") as file:
            json.dump({**recorded, "chunks": [{**recorded["chunks"][0], **changes}, *recorded["chunks"][1:]]}, file)
        for words in (("simulate", job, "--profile", other), ("plan", job, "--profile", other),
                      ("estimate", "--profile", profile, "--profile", other)):
            refused = ctl(folder, *words, expect=2)
            assert f"profile {other}: {said}" in refused.stderr and refused.stdout == "", (words, refused)
    with open(other, "w") as file:  # as an older program wrote it
        json.dump({key: recorded[key] for key in recorded if key not in ("dtype", "device", "threads", "order")}, file)
    done = ctl(folder, "simulate", job, "--profile", other)
    assert "dtype, device, threads and order are not in it" in done.stderr, done.stderr


def check_estimates(folder, profile, recorded):
    """Points that are not plain numbers, and profiles of other batches, are refused; the explanation is in JSON, too."""
    base = ["estimate", "--batch", "128", "--stages", "8"]
    for points, said in ((("1:5%x", "2:5%"), "--mfu 1:5%x: is not b:MFU"), (("1.5:5", "2:5"), "--mfu 1.5:5: is not"),
                         (("1:0x10", "2:5"), "--mfu 1:0x10"), (("1:5%", "2:5"), "both in percent"),
                         (("1:1e-308", "2:1e308"), "--mfu 1:1e-308: the utilisation must be from"),
                         (("1:37.8", "1:55.2"), "--mfu 1:37.8 and --mfu 1:55.2: both are of micro-batch 1; give"),
                         (("1:0.378", "2:55.2"), "differ by more than a factor of 10, as if one were a share"),
                         (("1:101%", "2:5%"), "from 1e-09 to 100 %"), (("0:5", "2:5"), "must be from 1 to 65536"),
                         (("1:5", "3:5"), "--mfu: a batch of 128 sequences is no whole number of micro-batches of 3")):
        refused = ctl(folder, *base, "--mfu", points[0], "--mfu", points[1], expect=2)
        assert said in refused.stderr, (points, refused.stderr)
    words = [*base, "--mfu", "1:37.8", "--mfu", "2:55.2", "--explain"]
    shown = json.loads(ctl(folder, *words, "-o", "json").stdout)
    assert abs(shown["speedup"] - 1.38833) < 1e-5 and shown["mfu_to"] == 55.2, shown
    assert all(line in ctl(folder, *words).stdout for line in shown["explanation"]), shown
    back = ctl(folder, *base, "--mfu", "2:55.2", "--mfu", "1:37.8", "--explain").stdout
    assert "A stage may become 4.9 % less efficient to break even; it becomes 31.5 % less efficient." in back, back
    ramps = {}
    for schedule in (("--chunks", "4"), ("--schedule", "interleaved"), ("--schedule", "zb-v"), ("--schedule", "gpipe")):
        ramps[schedule[1]] = json.loads(ctl(folder, *words, *schedule, "-o", "json").stdout)["ramp_micro_batches"]
    assert ramps == {"4": 1.75, "interleaved": 3.5, "zb-v": 0, "gpipe": 7}, ramps
    refused = ctl(folder, *words, "--schedule", "zb-v", "--chunks", "3", expect=2).stderr
    assert "--chunks 3: schedule zb-v has 2" in refused, refused
    other = os.path.join(folder, "other.json")
    first = os.path.join(folder, "first.json")
    for name, changes in ((first, {}), (other, {"micro_batch": 4, "micro_batches": 4})):  # a schedule says what its ramp is
        with open(name, "w") as file:
            json.dump({**recorded, **changes, "schedule": "zb-h1"}, file)
    pair = json.loads(ctl(folder, "estimate", "--profile", first, "--profile", other, "-o", "json").stdout)
    assert (pair["ramp_micro_batches"], pair["ramp"], pair["speedup"]) == (0, 1, pair["efficiency"]), pair
    with open(other, "w") as file:
        json.dump({**recorded, "micro_batch": 16}, file)
    refused = ctl(folder, "estimate", "--profile", profile, "--profile", profile, expect=2).stderr
    assert f"--profile {profile}: is given twice" in refused, refused
    refused = ctl(folder, "estimate", "--profile", profile, "--profile", other, expect=2).stderr
    assert "is 16 sequences a step" in refused and "128; say with --batch" in refused, refused
    for cost in ("1e308,1e308,1e308,0", "1,1e13,1,0"):
        show = ["schedule", "show", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--cost", cost]
        assert "at most 1e+12" in ctl(folder, *show, "-o", "json", expect=2).stderr, cost


def check_profile(folder):
    job = ballast.write_job(folder, model=ballast.small_inline(), data={"train": [__file__], "format": "text"},
                            train={"steps": 6, "micro_batches": 8})
    profile, larger = os.path.join(folder, "profile.json"), os.path.join(folder, "larger.json")
    report, done = ballast.run_job(folder, job, "--local", "--profile", profile)
    line = report[-1]
    assert line["event"] == "prediction" and line["step"] == 6, line
    assert [s["peak_slots"] for s in line["stages"]] == [{"predicted": n, "measured": n} for n in (2, 1)], line
    assert all(s["slot_bytes"]["predicted"] == s["slot_bytes"]["measured"] for s in line["stages"]), line
    assert "predicted / measured" in done.stdout and "waits by cause" in done.stdout, done.stdout
    for stage in line["stages"]:
        waits = stage["waits"]
        assert set(waits) == {"activation", "gradient", "load", "slot", "core", "other"}, waits
        assert all(value >= 0 for both in waits.values() for value in both.values()), waits
        whole = sum(both["predicted"] for both in waits.values())
        assert abs(whole - stage["stall_seconds"]["predicted"]) < 1e-9, stage
    first, last = (stage["waits"] for stage in line["stages"])  # of two: nobody comes before the one, after the other
    assert first["activation"] == last["gradient"] == {"predicted": 0, "measured": 0}, line
    assert first["gradient"]["measured"] > 0 and last["activation"]["measured"] > 0, line
    with open(profile) as file:
        recorded = json.load(file)
    assert recorded["ballast_profile"] == 1 and len(recorded["chunks"]) == 2, recorded
    setting = {key: recorded[key] for key in ("dtype", "device", "threads")}
    assert setting == {"dtype": "fp32", "device": "host", "threads": 1} and len(recorded["order"]) == 16, recorded
    assert line["warnings"] == [], line
    assert all(chunk[op_type] > 0 for chunk in recorded["chunks"] for op_type in "FIW"), recorded
    assert [len(stage["times"]) for stage in recorded["stages"]] == [16, 16], recorded

    simulated = json.loads(ctl(folder, "simulate", job, "--profile", profile, "--replay", "-o", "json").stdout)
    assert simulated["measured"] and simulated["step_seconds"] > 0 and simulated["warnings"] == [], simulated
    other = ["--set", "train.micro_batch=4", "--set", "train.micro_batches=4"]
    report, done = ballast.run_job(folder, job, "--local", "--predict", profile, "--profile", larger, *other)
    assert report[-1]["event"] == "prediction", report[-1]
    assert "micro_batch is 2, the job's train.micro_batch 4: scaled" in report[-1]["warnings"][0], report[-1]
    assert "warning: profile " in done.stderr and "micro_batch is 2" in done.stderr, done.stderr
    estimate = json.loads(ctl(folder, "estimate", "--profile", profile, "--profile", larger, "-o", "json").stdout)
    assert (estimate["from"], estimate["to"], estimate["batch"], estimate["stages"]) == (2, 4, 16, 2), estimate
    assert abs(estimate["ramp"] - 18 / 20) < 1e-12 and estimate["warnings"] == [], estimate
    check_uses(folder, job, profile, recorded)
    check_estimates(folder, profile, recorded)

    wrong = ctl(folder, "simulate", job, "--profile", profile, "--set", "model.hidden=128", expect=2)
    assert "of another model" in wrong.stderr, wrong.stderr
    wrong = ctl(folder, "run", job, "--local", "--predict", profile, "--set", "model.hidden=128", expect=2)
    assert "of another model" in wrong.stderr, wrong.stderr
    wrong = ctl(folder, "simulate", job, "--profile", profile, "--hardware", "host", expect=2)
    assert "--profile has measured costs; give one of the two" in wrong.stderr, wrong.stderr
    wrong = ctl(folder, "simulate", job, "--order", "pair-adjacent", expect=2)
    assert "--order: is about a cluster" in wrong.stderr, wrong.stderr
    check_picture(folder, job)
    wrong = ctl(folder, "simulate", job, "--profile", job, expect=2)
    assert "is no profile" in wrong.stderr, wrong.stderr
    for unknown in ("h201", "v100", "a100", "my-own"):
        wrong = ctl(folder, "simulate", job, "--hardware", unknown, expect=2)
        assert f"--hardware {unknown}: no such device is built in; a100-80g, h100, h200 and host are" in wrong.stderr, \
            wrong.stderr


def check_copies(folder):
    """A profile of a run with stores has the rate of its copies; one whose blocks are made again has their time."""
    job = ballast.write_job(folder, model=ballast.small_inline(layers=4, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"steps": 6, "micro_batches": 8},
                            pipeline={"stages": 4}, memory={"slots": 3})
    for policy in ("bpipe", "drop"):
        profile = os.path.join(folder, f"{policy}.json")
        ballast.run_job(folder, job, "--local", "--set", f"balance.policy={policy}", "--profile", profile)
        with open(profile) as file:
            recorded = json.load(file)
        for key in ("path_rate", "evict", "load"):  # of those alone that made copies
            seen = [stage.get(key, 0) for stage in recorded["stages"]]
            assert (seen[0] > 0) == (policy == "bpipe") and seen[1:] == [0, 0, 0], (key, seen)
        assert recorded["chunks"][0]["measured_R"] == (policy == "drop"), recorded["chunks"][0]
        simulated = json.loads(ctl(folder, "simulate", job, "--set", f"balance.policy={policy}", "--profile", profile,
                                   "-o", "json").stdout)
        assert [stage["peak_slots"] for stage in simulated["stages"]] == [3, 3, 2, 1], simulated
    doubted = json.loads(ctl(folder, "simulate", job, "--set", "balance.policy=bpipe", "--profile", profile, "-o",
                             "json").stdout)["warnings"]
    assert len(doubted) == 1 and "path_rate: no copies of stage 0 were measured, taken is 4 GB/s" in doubted[0], doubted


def check_slow_link(folder):
    """A link that two stages keep busy: copies wait for it, which is not the time of a copy. So the run predicts itself."""
    job = ballast.write_job(folder, model=ballast.small_inline(layers=4, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"steps": 8, "micro_batches": 8},
                            pipeline={"stages": 4}, memory={"slots": 2},
                            balance={"policy": "offload", "host": "64MiB", "rate": 10000000})
    report, _ = ballast.run_job(folder, job, "--local", "--profile", os.path.join(folder, "slow.json"))
    found = report[-1]["seconds"]
    assert abs(found["predicted"] / found["measured"] - 1) < 0.15, found
    print("ok slow link:", found)


def check_auto(folder):
    """Under auto the plan changes while the run goes on: what is predicted in the end is about the one that ran last."""
    job = ballast.write_job(folder, model=ballast.small_inline(layers=4, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"steps": 30, "micro_batches": 8},
                            pipeline={"stages": 4}, balance={"policy": "auto"})
    profile = os.path.join(folder, "auto.json")
    for slots, more in ((3, ["--set", "balance.rate=1000000"]), (2, [])):
        for attempt in range(3):  # a change just before the end leaves no step to record
            report, done = ballast.run_job(folder, job, "--local", "--set", f"memory.slots={slots}", "--profile", profile,
                                           *more, expect=None)
            if done.returncode == 0:
                break
            assert "the policy changed at step" in done.stderr, done.stderr
        line, steps = report[-1], [event for event in report if event["event"] == "step"]
        assert line["event"] == "prediction", report[-2:]
        for stage in line["stages"]:
            for key in ("peak_slots", "slot_bytes"):
                assert stage[key]["predicted"] == stage[key]["measured"], (slots, stage)
        last = steps[-1]
        assert [s["peak_slots"]["measured"] for s in line["stages"]] == [s["peak_slots"] for s in last["stages"]], line
        again = sum(stage["dropped"] for stage in last["stages"])
        if slots == 3:  # a path of 1 MB/s: nobody parks
            assert again > 0 and sum(stage["evicted"] for stage in last["stages"]) == 0, last
        with open(profile) as file:
            recorded = json.load(file)
        assert any(chunk["measured_R"] for chunk in recorded["chunks"]) == (again > 0), (slots, recorded["chunks"])


def check_shared_layers(folder, gpt):
    """What is planned with tensor ranks runs; what parts do not divide is not planned; times are those of as many ranks."""
    small = ballast.write_job(folder, name="shared.yaml", model=ballast.small_inline(), train={"micro_batches": 8},
                              data={"train": [__file__], "format": "text"}, parallel={"tensor_parts": 4})
    planned, profile = (os.path.join(folder, name) for name in ("planned-shared.yaml", "shared.json"))
    best = json.loads(ctl(folder, "plan", small, "--nodes", "1x4", "--hardware", "host", "--stages", "2", "--tensor",
                          "2", "--write", planned, "-o", "json").stdout)["best"]
    assert (best["tensor"], best["stages"], best["data"]) == (2, 2, 1), best
    report, _ = ballast.run_job(folder, planned, "--local", "--profile", profile)
    assert [(stage["tensor"], stage["stage"]) for stage in report[0]["stages"]] == [(0, 0), (1, 0), (0, 1), (1, 1)], report[0]
    report, _ = ballast.run_job(folder, planned, "--local", "--predict", profile)
    for stage in report[-1]["stages"]:
        assert stage["peak_slots"]["predicted"] == stage["peak_slots"]["measured"], stage
    for words in (("--set", "parallel.tensor=1"), ("--set", "parallel.tensor_parts=4", "--set", "parallel.tensor=4")):
        other = ctl(folder, "simulate", planned, "--profile", profile, *words, expect=2)
        assert f"tensor is 2, the job's parallel.tensor is {words[-1][-1]}" in other.stderr, other.stderr
    one, two = (json.loads(ctl(folder, "simulate", gpt, "--set", f"parallel.tensor={ranks}", "-o", "json").stdout)
                for ranks in (1, 2))
    assert 0.5 * one["step_seconds"] < two["step_seconds"] < one["step_seconds"], (one, two)
    assert two["stages"][0]["memory"]["weights"] < 0.51 * one["stages"][0]["memory"]["weights"], (one, two)
    odd = ctl(folder, "plan", gpt, "--nodes", "1x4", "--tensor", "4", "--set", "model.ffn=4098", expect=2)
    assert "4 parts of a layer cannot share model.ffn, which is 4098" in odd.stderr, odd.stderr


def check_published(folder):
    """Llama 3 405B with half as many micro-batches a replica: 400 of 430 TFLOP/s a device are published."""
    words = ["plan", os.path.join(ballast.ROOT, "examples", "llama-405b.yaml"), "--hardware", "h100", "--tensor", "8",
             "--stages", "16", "--schedule", "interleaved", "--shard", "--sequence", "--attention", "flash", "--micro-batch",
             "1", "-o", "json", "--slices", "1"]
    for chunks in (4, 7):
        many, few = (json.loads(ctl(folder, *words, "--chunks", str(chunks), "--nodes", f"{nodes}x8").stdout)["best"]
                     for nodes in (1024, 2048))
        assert (many["data"], many["micro_batches"], few["data"], few["micro_batches"]) == (64, 32, 128, 16), (many, few)
        assert abs(few["mfu"] / many["mfu"] - 400 / 430) <= 0.02, (chunks, many["mfu"], few["mfu"])


def check_plan(folder):
    """The planned job runs and keeps what was planned; what cannot be run is not written."""
    job = ballast.write_job(folder, model=ballast.small_inline(layers=6, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"steps": 2, "micro_batches": 6})
    planned = os.path.join(folder, "planned.yaml")
    unlimited = json.loads(ctl(folder, "plan", job, "-o", "json").stdout)
    assert unlimited["fitting"] == len([c for c in unlimited["candidates"] if c["fits"]]) or unlimited["fitting"] > 8
    limit = str(int(unlimited["best"]["memory_bytes"] * 0.97))
    plan = json.loads(ctl(folder, "plan", job, "--memory", limit, "--write", planned, "-o", "json").stdout)
    best = plan["best"]
    assert best["fits"] and best["memory_bytes"] <= int(limit), best
    simulated = json.loads(ctl(folder, "simulate", planned, "-o", "json").stdout)
    assert abs(simulated["step_seconds"] / best["step_seconds"] - 1) < 1e-6, (simulated, best)
    report, _ = ballast.run_job(folder, planned, "--local")
    assert [stage["peak_slots"] for stage in report[0]["stages"]] == \
        [stage["peak_slots"] for stage in simulated["stages"]], (report[0], simulated)

    tight = ctl(folder, "plan", job, "--memory", "100 KiB", "--schedule", "1f1b", expect=8)
    assert "the smallest limit that works is" in tight.stderr, tight.stderr
    gpt = ballast.write_job(folder, name="gpt.yaml", model=ballast.small_inline(hidden=1024, layers=8, seq=512),
                            data={"train": [__file__], "format": "text"}, train={"micro_batches": 16})
    cluster = ["plan", gpt, "--nodes", "2x4", "--tensor", "2", "--schedule", "1f1b"]
    assert json.loads(ctl(folder, *cluster, "-o", "json").stdout)["best"]["tensor"] == 2
    check_shared_layers(folder, gpt)
    replicas = os.path.join(folder, "replicas.yaml")
    small = ballast.write_job(folder, name="small.yaml", model=ballast.small_inline(), train={"micro_batches": 8},
                              data={"train": [__file__], "format": "text"})
    best = json.loads(ctl(folder, "plan", small, "--nodes", "1x4", "--hardware", "host", "--stages", "2", "--tensor",
                          "1", "--write", replicas, "-o", "json").stdout)["best"]
    assert (best["data"], best["stages"]) == (2, 2), best
    report, _ = ballast.run_job(folder, replicas, "--local")
    assert [(stage["data"], stage["stage"]) for stage in report[0]["stages"]] == [(0, 0), (0, 1), (1, 0), (1, 1)], report[0]
    one, two = (json.loads(ctl(folder, "simulate", replicas, "--set", f"parallel.data={data}", "-o", "json").stdout)
                for data in (1, 2))
    assert all("gather" not in stage["stall_seconds"] for stage in one["stages"]), one["stages"]
    assert two["stages"][0]["stall_seconds"]["gather"] > 0 and two["stages"][0]["stall_seconds"]["reduction"] > 0, two["stages"]
    assert all(less["memory"]["optimizer"] < more["memory"]["optimizer"] for less, more in zip(two["stages"], one["stages"]))
    profile = os.path.join(folder, "replicas.json")
    report, _ = ballast.run_job(folder, replicas, "--local", "--profile", profile)
    report, _ = ballast.run_job(folder, replicas, "--local", "--predict", profile)
    for stage in report[-1]["stages"]:
        assert stage["waits"]["reduction"]["predicted"] >= 0 and stage["waits"]["gather"]["measured"] >= 0, stage
        assert stage["peak_slots"]["predicted"] == stage["peak_slots"]["measured"], stage
    assert "did you mean '1f1b'" in ctl(folder, "plan", job, "--schedule", "1f1", expect=2).stderr
    assert "6x8" in ctl(folder, "plan", job, "--nodes", "six", expect=2).stderr
    for words, said in ((("plan", job, "--tensor", "2"), "--tensor: is about a cluster"),
                        (("plan", job, "--cards", "2"), "--cards: is about a cluster"),
                        (("plan", job, "--nodes", "2x4", "--cards", "3"), "--cards 3: 4 devices of a node cannot share"),
                        (("plan", job, "--nodes", "2x4", "--inter-gbps", "-1"), "--inter-gbps must be more than 0"),
                        (("plan", job, "--stages", "99"), "99 stages are more than its 6 layers"),
                        (("simulate", job, "--nodes", "1x1"), "--nodes 1x1: has no room for the 2 stages"),
                        (("estimate", "--batch", "8", "--stages", "2", "--mfu", "1:2", "--mfu", "2:nan"), "--mfu 2:nan"),
                        (("schedule", "frontier", "--stages", "4", "--micro-batches", "4", "--schedule", "1f2b"),
                         "--schedule 1f2b: no such schedule; did you mean '1f1b'"),
                        (("schedule", "show", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "2", "--cost",
                          "1,-1,1,0"), "B must be a number from 0 upwards")):
        assert said in ctl(folder, *words, expect=2).stderr, words


def check_plan_resets(folder):
    """What the job says about the room and groups of its own schedule does not hold back the planned one."""
    job = ballast.write_job(folder, name="before.yaml", model=ballast.small_inline(layers=8, seq=32),
                            data={"train": [__file__], "format": "text"}, train={"micro_batches": 8},
                            memory={"slots": 4}, pipeline={"stages": 2, "schedule": "grouped-interleaved", "group": 2})
    planned = os.path.join(folder, "after.yaml")
    for keys in ([], ["--set", "memory.slots=null", "--set", "memory.activation_bytes=16384"]):
        for schedule in ("gpipe", "grouped-interleaved") if ballast.LONG or not keys else ("gpipe",):
            best = json.loads(ctl(folder, "plan", job, *keys, "--schedule", schedule, "--write", planned, "-o",
                                  "json").stdout)["best"]
            simulated = json.loads(ctl(folder, "simulate", planned, "-o", "json").stdout)
            assert abs(simulated["step_seconds"] / best["step_seconds"] - 1) < 1e-6, (schedule, simulated, best)
    rows = json.loads(ctl(folder, "plan", job, "-o", "json").stdout)["families"]
    whys = {row["value"]: row["result"] for row in rows if row["kind"] == "schedule" and not row["fits"]}
    assert set(whys) == {"seq1f1b", "chimera", "dualpipe"} and "one copy of the model" in whys["chimera"], whys
    assert "plans are of one copy of the model" in ctl(folder, "plan", job, "--schedule", "chimera", expect=2).stderr


def check_plan_of_nodes(folder):
    """Without tensor and data parallelism the planned order is the one that the written job runs."""
    job = ballast.write_job(folder, name="order.yaml", model=ballast.small_inline(hidden=512, layers=8, seq=256),
                            data={"train": [__file__], "format": "text"}, train={"micro_batches": 8},
                            pipeline={"stages": 4})
    planned = os.path.join(folder, "ordered.yaml")
    nodes = ["--nodes", "2x2", "--hardware", "a100-80g", "--inter-gbps", "25", "-o", "json"]
    ways = ["--tensor", "1", "--stages", "4", "--micro-batch", "2", "--attention", "flash"]
    for schedule in ("v-half", "zb-h1") if ballast.LONG else ("zb-h1",):
        best = json.loads(ctl(folder, "plan", job, *nodes, *ways, "--schedule", schedule,
                              "--write", planned).stdout)["best"]
        simulated = json.loads(ctl(folder, "simulate", planned, *nodes).stdout)
        assert abs(simulated["step_seconds"] / best["step_seconds"] - 1) < 1e-6, (schedule, simulated, best)


def check_nodes(folder):
    """A slow card between two nodes: what crosses it is slower, and pairs of bpipe are better off on one node."""
    job = ballast.write_job(folder, name="nodes.yaml", model=ballast.small_inline(hidden=256, layers=4, seq=128),
                            data={"train": [__file__], "format": "text"}, train={"micro_batches": 8},
                            pipeline={"stages": 4}, balance={"policy": "bpipe"})
    words = ["simulate", job, "--hardware", "a100-80g", "-o", "json"]
    steps = {}
    for cards in ("2", "1"):
        for order in ("sequential", "pair-adjacent"):
            made = json.loads(ctl(folder, *words, "--nodes", "2x2", "--cards", cards, "--inter-gbps", "1",
                                  "--order", order).stdout)
            steps[cards, order] = made["step_seconds"]
            waited = sum(stage["stall_seconds"]["card"] for stage in made["stages"])
            assert waited > 0 or (cards, order) != ("1", "sequential"), made
    together = json.loads(ctl(folder, *words).stdout)["step_seconds"]
    assert together < steps["2", "pair-adjacent"] < steps["2", "sequential"] <= steps["1", "sequential"], (together, steps)


def main():
    with ballast.scratch() as folder:
        with ballast.served(folder) as place:
            for schedule, keys, stages in SHAPES:
                check_peaks(folder, place, schedule, keys, stages)
            for schedule, balance, stages in POLICIES:
                check_peaks(folder, place, schedule, {}, stages, balance)
        check_automatic(folder)
        check_profile(folder)
        check_copies(folder)
        check_slow_link(folder)
        check_auto(folder)
        check_plan(folder)
        check_published(folder)
        check_plan_resets(folder)
        check_plan_of_nodes(folder)
        check_nodes(folder)


main()
