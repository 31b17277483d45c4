# SPDX-License-Identifier: Apache-2.0
"""A run whose policy is changed often keeps its processes and its losses: bit for bit those of a run under one
policy. What `policy set` answers is so: the step that it names, and none before it, ran under that version. Every step
keeps to the cap of its policy, own and lent slots together, and moves blocks when the policy says so. A rollback brings
the policy before back. BALLAST_TEST_FLIPS sets how often (default 20)."""
import json
import os
import signal
import subprocess

from ballast import (CTL, assert_nothing_left, descendants, environment, losses, read_report, run_job, scratch,
                     shared_memory_files, small_inline, wait_until, write_job)

FLIPS = int(os.environ.get("BALLAST_TEST_FLIPS", "20"))
POLICIES = [["bpipe"], ["none"], ["cap", "3"], ["drop", "2"], ["cap", "5"]]  # 4 slots are what stage 0 needs without evictions


def policy(folder, *words):
    done = subprocess.run([CTL, "policy", *words, "-o", "json", "--wait"], env=environment(folder), text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 0, f"policy {words}: exit {done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


def check_step(event, cap):
    """The report line of one step: what its policy allows each device, and whether blocks moved."""
    lent = {store["device"]: store["lent_slots"] for store in event["stores"]}
    for stage in event["stages"]:
        assert stage["peak_slots"] <= stage["own_slots"], (event["step"], stage)
        assert stage["own_slots"] + lent.get(stage["stage"], 0) <= cap, (event["step"], event["policy"], stage, lent)
        assert stage["evicted"] == stage["loaded"] and stage["lost"] == 0, (event["step"], stage)
    moved = sum(stage["evicted"] for stage in event["stages"])
    assert (moved > 0) == (cap < 4 and event["policy"] != "drop"), (event["step"], event["policy"], moved)
    again = sum(stage["recomputed"] for stage in event["stages"])
    assert (again > 0) == (event["policy"] == "drop"), (event["step"], event["policy"], again)
    assert again == sum(stage["dropped"] for stage in event["stages"]), (event["step"], event["stages"])


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=32, seq=32), pipeline={"stages": 4},
                        train={"steps": 100000, "micro_batch": 1, "micro_batches": 8})
        report = os.path.join(folder, "report.jsonl")
        with open(os.path.join(folder, "stderr.txt"), "w+") as errors:
            run = subprocess.Popen([CTL, "run", job, "--local", "--report", report], env=environment(folder),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            pids, answers = [], []
            try:
                wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was recorded")
                pids = descendants(run.pid)
                for i in range(FLIPS):
                    words = ["rollback"] if i % 10 == 9 else ["set", *POLICIES[i % len(POLICIES)]]
                    answers.append(policy(folder, *words))
                    assert answers[-1]["version"] == i + 2 and not answers[-1].get("unchanged"), (words, answers[-1])
                assert descendants(run.pid) == pids, "a process was replaced"
                last = answers[-1]["from_step"]
                wait_until(lambda: sum(1 for _ in open(report)) > last, 60, "no step after the last change")
            finally:
                run.send_signal(signal.SIGINT)
                code = run.wait(120)
            errors.seek(0)
            assert code == 130, f"exit code {code}: {errors.read()[-3000:]}"
        events = [event for event in read_report(report) if event["event"] == "step"]
        for answer in answers:
            event = events[answer["from_step"] - 1]
            assert (event["policy_version"], event["policy"]) == (answer["version"], answer["policy"]), (answer, event)
            assert events[answer["from_step"] - 2]["policy_version"] == answer["version"] - 1, answer
        caps = {1: 4, **{answer["version"]: answer["cap"] or 4 for answer in answers}}
        for event in events:
            check_step(event, caps[event["policy_version"]])
        assert len({tuple(stage["pid"] for stage in event["stages"]) for event in events}) == 1
        fixed, _ = run_job(folder, job, "--local", "--set", f"train.steps={len(events)}", timeout=280)
        assert losses(fixed) == losses(events), "a change of policy changed the losses"
        assert_nothing_left(folder, pids, shared)
        print(f"ok {FLIPS} changes in {len(events)} steps")


main()
