# SPDX-License-Identifier: Apache-2.0
"""What was planned with memory of the host is what a job simulates and runs: order, step and room at the host; a profile of
that run has a rate of copies there; without a host nothing is planned there, and flags that say nothing are refused."""
import json
import os
import subprocess

import ballast


def ctl(folder, *arguments, expect=0):
    done = subprocess.run([ballast.CTL, *arguments], env=ballast.environment(folder), text=True, timeout=200,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if expect == 0 else done.stderr


def plan(folder, job, path, *arguments):
    return json.loads(ctl(folder, "plan", job, "--micro-batch", "1", "--attention", "naive", "--write", path, "-o", "json",
                          *arguments))


def check_written(folder, job):
    """Under ever smaller limits, for schedules whose own orders leave and, in the soak, one that is searched within more slots."""
    path, seen = os.path.join(folder, "written.yaml"), set()
    for schedule in ("gpipe", "interleaved", *(("zb-v",) if ballast.LONG else ())):
        free = plan(folder, job, path, "--schedule", schedule)["best"]["memory_bytes"]
        for percent in (94, 90, 86, 82):
            found = plan(folder, job, path, "--schedule", schedule, "--memory", str(int(free * percent / 100)), "--host",
                         "64MiB", "--host-gbps", "200")
            for best in (found["best"],):
                if "order" not in best or best["policy"] != "offload":
                    continue
                simulated = json.loads(ctl(folder, "simulate", path, "-o", "json"))
                assert simulated["order"] == best["order"], (schedule, percent)
                assert simulated["host_bytes"] == best["host_bytes"] <= found["host_bytes"] == 64 << 20, (schedule, percent)
                seen.add((schedule, best.get("slots", 0) > best["cap"]))
    assert ("gpipe", False) in seen, seen
    print("ok written:", sorted(seen))


def check_hosted(folder):
    """Orders made for the host within the slots that fit: the written job has the same, with the copies of the plan, and
    another one, or none that fits, if its copies are said to be slow."""
    job = ballast.write_job(folder, name="hosted.yaml", model=ballast.small_inline(layers=8, seq=128),
                            data={"train": [__file__], "format": "text"}, train={"micro_batch": 1, "micro_batches": 8},
                            pipeline={"stages": 4})
    path = os.path.join(folder, "hosted-written.yaml")
    for schedule, percent in (("zb-h1", 75), *((("zb-v", 65),) if ballast.LONG else ())):
        free = plan(folder, job, path, "--schedule", schedule)["best"]["memory_bytes"]
        best = plan(folder, job, path, "--schedule", schedule, "--memory", str(int(free * percent / 100)), "--host", "64MiB",
                    "--host-gbps", "1000")["best"]
        assert best["policy"] == "offload" and best["evictions"] > 0, best
        told = json.loads(ctl(folder, "simulate", path, "-o", "json"))
        assert told["order"] == best["order"] and told["host_bytes"] == best["host_bytes"], schedule
        slow = subprocess.run([ballast.CTL, "simulate", path, "-o", "json", "--set", "pipeline.costs.host_copy=1"],
                              env=ballast.environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert slow.returncode == 2 or json.loads(slow.stdout)["order"] != best["order"], slow
        report, _ = ballast.run_job(folder, path, "--local", "--steps", "2")
        for step in (event for event in report if event["event"] == "step"):
            assert sum(stage["evicted"] for stage in step["stages"]) == best["evictions"], step["stages"]
            assert all(stage["peak_slots"] <= best["slots"] for stage in step["stages"]), step["stages"]
        print("ok made for the host:", schedule, best["slots"], best["cap"], best["evictions"])


def check_run(folder, job):
    path, profile = os.path.join(folder, "run.yaml"), os.path.join(folder, "profile.json")
    free = plan(folder, job, path, "--schedule", "gpipe")["best"]["memory_bytes"]
    best = plan(folder, job, path, "--schedule", "gpipe", "--memory", str(int(free * 0.9)), "--host", "64MiB",
                "--host-gbps", "200")["best"]
    assert best["policy"] == "offload" and best["host_bytes"] > 0, best
    report, _ = ballast.run_job(folder, path, "--local", "--profile", profile)
    steps = [event for event in report if event["event"] == "step"]
    slot = json.loads(ctl(folder, "simulate", path, "-o", "json"))
    for step in steps:
        hosts = [store for store in step["stores"] if "host" in store]
        assert [store["lent_slots"] for store in hosts] == [slot["host_slots"]], hosts
        assert sum(stage["evicted"] for stage in step["stages"]) == best["evictions"], step["stages"]
    with open(profile, encoding="utf-8") as file:
        stages = json.load(file)["stages"]
    assert any(stage.get("host_rate", 0) > 0 for stage in stages), stages
    assert not any("path_rate" in stage for stage in stages), stages
    again = json.loads(ctl(folder, "simulate", path, "--profile", profile, "-o", "json"))
    assert again["host_slots"] == slot["host_slots"] and again["measured"], again
    print("ok run and profile")


def check_refused(folder, job):
    for words, reason in ((("--host-gbps", "100"), "--host-gbps: is about memory of hosts, which --host BYTES gives"),
                          (("--nodes", "1x8", "--host", "1GiB", "--host-share", "3"), "--host-share 3: does not divide")):
        assert reason in ctl(folder, "plan", job, *words, expect=2), reason
    told = ctl(folder, "plan", job, "--schedule", "1f1b", "--micro-batch", "1", "--memory", "1MiB", "--host", "1GiB", expect=8)
    assert "memory of the host takes activation blocks alone" in told, told
    print("ok refused")


def main():
    with ballast.scratch() as folder:
        job = ballast.write_job(folder, model=ballast.small_inline(layers=8, seq=128),
                                data={"train": [__file__], "format": "text"},
                                train={"steps": 4, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4})
        check_written(folder, job)
        check_hosted(folder)
        check_run(folder, job)
        check_refused(folder, job)


main()
