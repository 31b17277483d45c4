# SPDX-License-Identifier: Apache-2.0
"""Stores that have just the room of one plan: a run changes between policies that fill them, again and again, because the
next plan is prepared in the room of the present one. Leases and quotas go by the job's name, whatever the plan: a quota
below what a plan needs refuses it and says so, and no data connection counts as lost. The losses are those of an
undisturbed run bit by bit."""
import json
import re
import signal
import subprocess

import prometheus
from ballast import (CTL, GOLDEN, Run, Service, environment, losses, on, run_job, scratch, small_inline, stages, stages_of,
                     wait_until, write_job)

STAGES = 6
GRANULE = 65536
POLICIES = (("bpipe", "4"), ("cap", "5", "--device", "4"), ("cap", "4"))


def ctl(folder, *words, expect=0):
    done = subprocess.run([CTL, *words], env=environment(folder), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == expect, f"{words}: exit code {done.returncode}, expected {expect}: {done.stderr}"
    return json.loads(done.stdout) if "json" in words and done.stdout else done.stderr


def start(folder, job, *arguments):
    run = Run(folder, job, *arguments)
    run.wait_for(bool, "no step was made")
    return run


def needs(folder, job):
    """Bytes of each store that the largest of the policies takes."""
    run = start(folder, job, "--local")
    try:
        lent = [[device["lent_slots"] for device in ctl(folder, "policy", "set", *words, "--dry-run", "-o", "json",
                                                        "--timeout", "60")["devices"]] for words in POLICIES]
        ctl(folder, "policy", "set", "bpipe", "4", "--wait", "-o", "json")
        room = wait_until(lambda: ctl(folder, "leases", "list", "-o", "json"), 60, "no leases")[0]["room_bytes"]
    finally:
        run.end(130, signal.SIGINT)
    assert len({tuple(numbers) for numbers in lent}) > 1, lent  # or nothing is tried here
    print(f"ok lent: {lent}")
    return [max(numbers) * room for numbers in zip(*lent)]


def plans_of(folder, *more):
    return {lease["plan"] for lease in ctl(folder, "leases", "list", "-o", "json", *more)}


def main():
    with scratch() as folder:
        job = write_job(folder, name="exact.yaml", model=small_inline(hidden=32, layers=STAGES, seq=32),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": STAGES})
        with open(job) as file:
            keys = json.load(file)
        keys["name"] = "exact"
        with open(job, "w") as file:
            json.dump(keys, file)
        capacities = needs(folder, job)
        print(f"ok capacities: {capacities}")
        stores = []
        with stages(folder, STAGES) as services:
            try:
                for capacity in capacities:
                    stores.append(Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity",
                                          str(max(capacity, GRANULE)), "--metrics-listen", "127.0.0.1:0"))
                run = start(folder, job, *on(services, stores))
                at = [word for store in stores for word in ("--store", store.address)]
                for words in POLICIES * 3:
                    ctl(folder, "policy", "set", *words, "--wait", "-o", "json")
                    # The plan before goes as its last session is closed; then one plan has it all, under the job's name.
                    wait_until(lambda: len(plans_of(folder, *at, "--job", "exact")) == 1, 60, "two plans hold slots")
                    assert plans_of(folder, *at, "--job", "another") == set()
                print(f"ok {len(POLICIES) * 3} changes in the room of one plan")

                ctl(folder, "quota", "exact", str(GRANULE), *at, "-o", "json")
                said = ctl(folder, "policy", "set", "bpipe", "4", "--wait", expect=8)
                assert "quota" in said and "stays in force" in said, said
                ctl(folder, "quota", "exact", "unlimited", *at)
                ctl(folder, "quota", "exact", str(GRANULE), "--stage", "0", *at)
                said = ctl(folder, "policy", "set", "bpipe", "4", "--wait", expect=8)
                assert "quota" in said and "stage 0" in said, said
                ctl(folder, "quota", "exact", "unlimited", "--stage", "0", *at)
                ctl(folder, "policy", "set", "bpipe", "4", "--wait", "-o", "json")
                assert "'many' is no number of bytes" in ctl(folder, "quota", "exact", "many", *at, expect=2)
                told = [prometheus.scrape(re.search(r"metrics on http://(\S+)/metrics", store.log())[1]) for store in stores]
                for reason in ("job_quota", "stage_quota"):
                    assert sum(store.get("ballast_store_refusals_total", reason=reason) for store in told) > 0
                assert {store.get("ballast_store_data_lost_total") for store in told} == {0}, "a refusal is no loss"
                print("ok quotas by name")
                made = len(run.steps())
                run.wait_for(lambda steps: len(steps) > made + 1, "no step after all that")
                run.end(130, signal.SIGINT)
            finally:
                for store in stores:
                    store.kill(signal.SIGKILL)
        events = run.steps()
        assert sum(stage["recomputed"] for stage in stages_of(events)) == 0
        some = min(len(events), 300)
        expected = losses(run_job(folder, job, "--local", "--steps", str(some), timeout=600)[0])
        assert losses(events)[:some] == expected, "other losses"
        print(f"ok {len(events)} steps")


if __name__ == "__main__":
    main()
