# SPDX-License-Identifier: Apache-2.0
"""Schedules of several chunks a stage under a cap: grouped-interleaved and a V run with the losses of 1f1b bit by bit, own
and lent slots of every device stay within the cap at every step, blocks are evicted, and the peaks are those that
`ballastctl simulate` says. A change of policy brings the order that a job has which begins with it: a cap that no other
order fits comes into force while steps go on, and is taken back; within memory.slots, too. A path that is declared slow is
avoided. What cannot run is refused with the reason."""
import json
import os
import signal
import subprocess

import ballast


def ctl(folder, *arguments, expect=0):
    done = subprocess.run([ballast.CTL, *arguments], env=ballast.environment(folder), text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def job_of(folder, pipeline, micro_batches, **sections):
    return ballast.write_job(folder, model=ballast.small_inline(hidden=32, layers=8, seq=16),
                             data={"train": [__file__], "format": "text"},
                             train={"steps": 3, "micro_batch": 1, "micro_batches": micro_batches},
                             pipeline={"stages": 4, **pipeline}, **sections)


def check_cap(folder, schedule, micro_batches, cap, mode):
    expected = ballast.losses(ballast.run_job(folder, job_of(folder, {"stages": 1}, micro_batches), "--local")[0])
    job = job_of(folder, {"schedule": schedule}, micro_batches, memory={"slots": cap},
                 balance={"policy": "cap", "cap": cap, "mode": mode})
    predicted = json.loads(ctl(folder, "simulate", job, "-o", "json").stdout)["stages"]
    report, _ = ballast.run_job(folder, job, "--local")
    assert ballast.losses(report) == expected, f"{schedule}: other losses"
    for step in (event for event in report if event["event"] == "step"):
        for plan, stage, store in zip(predicted, step["stages"], step["stores"]):
            assert stage["own_slots"] + store["lent_slots"] <= cap, (schedule, stage, store)
            assert stage["peak_slots"] <= stage["own_slots"] and store["peak_leased"] <= store["lent_slots"], (stage, store)
            assert stage["peak_slots"] == plan["peak_slots"], (schedule, plan, stage)
            assert stage["evicted"] == stage["loaded"] == plan["evictions"], (schedule, plan, stage)
            assert stage["lost"] == stage["dropped"] == stage["recomputed"] == 0, stage
    evicted = [stage["evicted"] for stage in step["stages"]]
    assert sum(evicted) > 0, evicted
    print(f"ok {schedule}, {mode}: {cap} slots a device, {evicted} evictions")


def predict(folder, job):
    return json.loads(ctl(folder, "simulate", job, "-o", "json").stdout)["stages"]


def check_steps(steps, expected, cap, micro_batches, folder):
    """Every step has the peaks and evictions of its policy, and the run the losses of 1f1b."""
    for step in steps:
        for plan, stage, store in zip(expected[step["policy"]], step["stages"], step["stores"]):
            assert cap is None or stage["own_slots"] + store["lent_slots"] <= cap, (stage, store)
            assert stage["peak_slots"] == plan["peak_slots"], (step["policy"], plan, stage)
            assert stage["evicted"] == stage["loaded"] == plan["evictions"], (step["policy"], plan, stage)
            assert store["peak_leased"] <= store["lent_slots"], store
    plain = job_of(folder, {}, micro_batches)
    reference, _ = ballast.run_job(folder, plain, "--local", "--steps", str(len(steps)))
    assert ballast.losses(steps) == ballast.losses(reference), "other losses"


def check_changes(folder, job, changes):
    """Each change answers with the order that it is `changes`' to have; returns the steps."""
    run = ballast.Run(folder, job, "--local", "--set", "train.steps=100000")
    try:
        run.wait_for(lambda steps: steps, "a step")
        for words, order in changes:
            answer = json.loads(ctl(folder, "policy", *words, "--wait", "-o", "json").stdout)
            at = answer["from_step"]
            assert answer["order"] == order, answer
            run.wait_for(lambda steps: len(steps) > at, "steps under it")
        run.end(expect=130, number=signal.SIGINT)
    finally:
        run.kill()
    return run.steps()


def check_change(folder, schedule, micro_batches, cap):
    """From none to a cap below what every stage needs in the order of none, and back."""
    pipeline = {"schedule": schedule}
    expected = {policy["policy"]: predict(folder, job_of(folder, pipeline, micro_batches, balance=policy))
                for policy in ({"policy": "none"}, {"policy": "cap", "cap": cap})}
    assert min(stage["peak_slots"] for stage in expected["none"]) > cap, "the order of none fits the cap"
    steps = check_changes(folder, job_of(folder, pipeline, micro_batches),
                          [(["set", "cap", str(cap)], "for balancing"), (["set", "none"], "for none")])
    assert [step["policy"] for step in (steps[0], steps[-1])] == ["none", "none"]
    assert all(stage["own_slots"] + store["lent_slots"] <= cap for step in steps if step["policy"] == "cap"
               for stage, store in zip(step["stages"], step["stores"]))
    assert sum(stage["evictions"] for stage in expected["cap"]) > 0, expected
    check_steps(steps, expected, None, micro_batches, folder)
    print(f"ok {schedule}: from none to cap {cap} and back in {len(steps)} steps")


def check_limited(folder, schedule, micro_batches, slots):
    """An order that is searched within memory.slots: from bpipe, whose order none could not have, to none and back."""
    expected = {}
    for policy in "none", "bpipe":
        job = job_of(folder, {"schedule": schedule}, micro_batches, memory={"slots": slots}, balance={"policy": policy})
        expected[policy] = predict(folder, job)
    assert sum(stage["evictions"] for stage in expected["bpipe"]) > 0, "nothing is parked"
    steps = check_changes(folder, job, [(["set", "none"], "for none"), (["rollback"], "for balancing")])
    assert {step["policy"] for step in steps} == {"none", "bpipe"} and steps[-1]["policy"] == "bpipe", steps[-1]
    check_steps(steps, expected, slots, micro_batches, folder)
    print(f"ok {schedule}: from bpipe within {slots} slots to none and back in {len(steps)} steps")


def check_slow_path(folder):
    """Stage 0 has one block too many: it goes to its mirror image, unless the path there is slow."""
    for slow, chosen in ([], 4), (["0-4=8"], 3):
        job = job_of(folder, {"stages": 5}, 8, balance={"policy": "cap", "cap": 4, "mode": "fewest", "slow_paths": slow})
        report, _ = ballast.run_job(folder, job, "--local")
        for step in (event for event in report if event["event"] == "step"):
            leased = [store["peak_leased"] for store in step["stores"]]
            assert [device for device, count in enumerate(leased) if count > 0] == [chosen], (slow, leased)
    said = ctl(folder, "run", job_of(folder, {}, 8, balance={"policy": "cap", "cap": 3, "slow_paths": ["0-7=2"]}),
               "--local", expect=2).stderr
    assert "balance.slow_paths" in said and "there is no stage 7, they go from 0 to 3" in said, said
    print("ok a slow path is avoided")


def main():
    shared = ballast.shared_memory_files()
    with ballast.scratch() as folder:
        check_cap(folder, "grouped-interleaved", 8, 7, "overlap")
        check_cap(folder, "zb-v", 4, 7, "overlap")
        check_change(folder, "grouped-interleaved", 8, 7)
        check_limited(folder, "zb-h1", 8, 3)
        check_slow_path(folder)
        ballast.assert_nothing_left(folder, [], shared)


if __name__ == "__main__":
    main()
