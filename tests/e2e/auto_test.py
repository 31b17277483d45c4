# SPDX-License-Identifier: Apache-2.0
"""Policy auto on a live run: it begins with what fits and one block parked, measures, decides, and says what it weighed and why, per device;
losses are those of unlimited memory bit by bit, also where it goes over to another policy; `policy set auto` works while a run goes on, `rollback` goes back to what
was in force before it; with memory for all blocks nothing moves, with no stores what does not fit is made again, and where
stores have too little room for all, some are parked and some made again."""
import json
import os
import signal
import subprocess

from ballast import CTL, environment, losses, run_job, scratch, small_inline, stages, wait_until, write_job

STEPS = 100000  # more than the test lets run


def policy(folder, *words):
    done = subprocess.run([CTL, "policy", *words, "-o", "json"], env=environment(folder), text=True, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, f"policy {words}: {done.stderr}"
    return json.loads(done.stdout)


def get(folder):
    return policy(folder, "get", "--timeout", "60")


def decided(folder):
    now = get(folder)
    return now["decision"].startswith("after step ") and now


def check_decision(now):
    """What is told is about what is in force."""
    assert now["policy"] == "auto" and now["chosen"] in ("bpipe", "cap", "drop", "mix"), now
    drops = now["chosen"] == "drop"  # on a machine that is busy enough with something else
    mode = "" if drops else f" {now['mode']}"
    assert f": {now['chosen']}{mode}. Predicted: " in now["decision"], now["decision"]
    for part in ("none does not fit", "bpipe overlap ", "bpipe fewest ", "cap overlap ", "drop ", "full recomputation, "):
        assert part in now["decision"], now["decision"]
    for device in now["devices"]:
        assert device["own_slots"] + device["lent_slots"] <= 3, device
        word = "parks " if device["evictions"] > 0 else "recomputes " if drops and device["device"] == 0 else "needs "
        mixed = now["chosen"] == "mix" and device["dropped"] > 0
        assert device["reason"].startswith("parks " if mixed else word), device
    first = now["devices"][0]
    assert drops == (first["evictions"] == 0) and "MB/s" in first["reason"], now["devices"]


def told(folder):
    """What `policy get` prints; False while a change that was decided is not in force yet."""
    done = subprocess.run([CTL, "policy", "get", "--timeout", "60"], env=environment(folder), text=True, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return "\n\nafter step " in done.stdout and done.stdout


def check_told(folder):
    """For people: every alternative on a line of its own, then every device with its reason."""
    text = wait_until(lambda: told(folder), 60, "no decision is told")
    lines = text.split("\n\n")[1].splitlines()
    assert text.startswith("POLICY") and lines[0].endswith(" Predicted:"), text
    options = [line for line in lines if line.startswith("  ")]
    assert options[0] == "  none does not fit" and options[-1].startswith("  full recomputation, "), text
    devices = lines[1 + len(options):]
    assert [line.split()[:2] for line in devices] == [["device", str(i)] for i in range(4)], text
    assert devices[3] == "device 3 needs 1 of 3 slots: nothing moves", text


def check_slow_path(folder, job, plain):
    """Copies that take far longer than operations: no more is parked than shows that."""
    report, _ = run_job(folder, job, "--local", "--set", "balance.policy=auto", "--set", "memory.slots=3",
                        "--set", "balance.rate=100000")
    assert losses(report) == plain, "other losses on a slow path"
    steps = [event for event in report if event["event"] == "step"]
    evicted = [(step["policy_version"], step["stages"][0]["evicted"]) for step in steps]
    assert evicted[0][0] == 1 and evicted[-1][0] == 2 and evicted[-1][1] < evicted[0][1], evicted
    parked = sum(stage["evicted"] for step in steps for stage in step["stages"])
    assert parked == sum(version == 1 for version, _ in evicted) >= 2, evicted  # one a step, until that is known to be slow
    assert all(stage["peak_slots"] <= 3 for step in steps for stage in step["stages"]), steps
    print("ok slow path")


def check_beginning(steps):
    """Before anything is known of a path no stage parks more than one block of a step, and makes what else lacks a slot again."""
    first = [stage for step in steps if step["policy_version"] == 1 for stage in step["stages"]]
    assert first and max(stage["evicted"] for stage in first) == 1, first
    assert all(stage["dropped"] > 0 and stage["peak_slots"] <= 3 for stage in first if stage["evicted"] > 0), first


def check_no_stores(folder, job, plain):
    """Stages that were started by hand, and no stores: what does not fit is made again."""
    with stages(folder, 4) as services:
        addresses = ", ".join(f'"{service.address}"' for service in services)
        report, _ = run_job(folder, job, "--set", f"services.stages=[{addresses}]", "--set", "balance.policy=auto",
                            "--set", "memory.slots=3")
    assert losses(report) == plain, "other losses without stores"
    assert all(step["stages"][0]["dropped"] > 0 and step["stages"][0]["peak_slots"] == 3 and step["policy"] == "auto"
               for step in report if step["event"] == "step"), report
    print("ok no stores")


def check_little_room(folder, job, plain):
    """Stores have room for one of three blocks: that one is parked, the others are made again, and later as measured."""
    report, _ = run_job(folder, job, "--local", "--set", "balance.policy=auto", "--set", "memory.slots=2")
    assert losses(report) == plain, "other losses where stores have little room"
    steps = [event for event in report if event["event"] == "step"]
    first = steps[0]["stages"]
    check_beginning(steps)
    assert sum(stage["evicted"] for stage in first) > 0 and sum(stage["recomputed"] for stage in first) > 0, first
    for step in steps:
        for stage, store in zip(step["stages"], step["stores"]):
            assert stage["own_slots"] + store["lent_slots"] <= 2 and stage["peak_slots"] <= 2, step
            assert stage["recomputed"] == stage["lost"] + stage["dropped"], step
    print("ok little room")


def check_live(folder, job):
    report = os.path.join(folder, "live.jsonl")
    run = subprocess.Popen([CTL, "run", job, "--local", "--report", report, "--set", "balance.policy=auto",
                            "--set", "memory.slots=3", "--set", f"train.steps={STEPS}"], env=environment(folder),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was recorded")
        check_decision(wait_until(lambda: decided(folder), 60, "nothing was decided"))
        check_told(folder)
        again = policy(folder, "set", "auto", "--wait")
        assert again["unchanged"] and again["policy"] == "auto", again
        three = policy(folder, "set", "cap", "3", "--wait")
        assert "chosen" not in three and "decision" not in get(folder), three
        back = policy(folder, "set", "auto", "--wait")
        assert back["policy"] == "auto" and back["version"] > three["version"], back
        check_decision(wait_until(lambda: decided(folder), 60, "nothing was decided after a change"))
        before = policy(folder, "rollback", "--wait")
        assert (before["policy"], before["restores"]) == ("cap", three["version"]), before
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(120)
    print("ok live")


def main():
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=32, seq=16),
                        train={"steps": 10, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4})
        plain = losses(run_job(folder, job, "--local")[0])
        report, _ = run_job(folder, job, "--local", "--set", "balance.policy=auto", "--set", "memory.slots=3")
        assert losses(report) == plain, "other losses under auto"
        steps = [event for event in report if event["event"] == "step"]
        assert {step["policy"] for step in steps} == {"auto"}
        check_beginning(steps)
        print("ok losses")
        report, _ = run_job(folder, job, "--local", "--set", "balance.policy=auto")
        assert losses(report) == plain and all(stage["evicted"] == 0 for event in report if event["event"] == "step"
                                               for stage in event["stages"])
        print("ok nothing moves where all fits")
        check_no_stores(folder, job, plain)
        check_slow_path(folder, job, plain)
        check_little_room(folder, job, plain)
        check_live(folder, job)


if __name__ == "__main__":
    main()
