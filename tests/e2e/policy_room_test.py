# SPDX-License-Identifier: Apache-2.0
"""Stores that have just the room of one plan: a run changes between policies that fill them, again and again, because the
next plan is prepared in the room of the present one. Leases and quotas go by the job's name, whatever the plan: a quota
below what a plan needs refuses it and says so. The losses are those of an undisturbed run bit by bit."""
import json
import os
import signal
import subprocess

from ballast import (CTL, GOLDEN, Service, environment, losses, read_report, run_job, scratch, small_inline, stages,
                     wait_until, write_job)

STAGES = 6
GRANULE = 65536
POLICIES = (("bpipe", "4"), ("cap", "5", "--device", "4"), ("cap", "4"))


def ctl(folder, *words, expect=0):
    done = subprocess.run([CTL, *words], env=environment(folder), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == expect, f"{words}: exit code {done.returncode}, expected {expect}: {done.stderr}"
    return json.loads(done.stdout) if "json" in words and done.stdout else done.stderr


class Run:
    def __init__(self, folder, job, *arguments):
        self.report = os.path.join(folder, f"report-{len(arguments)}.jsonl")
        self.errors = open(os.path.join(folder, "errors"), "w+")
        self.process = subprocess.Popen([CTL, "run", job, "--report", self.report, *arguments],
                                        env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=self.errors)
        wait_until(lambda: self.steps() > 0 or self.process.poll() is not None, 90, "no step was made")
        self.errors.seek(0)
        assert self.process.poll() is None, self.errors.read()

    def steps(self):
        try:
            with open(self.report) as file:
                return file.read().count("\n")
        except OSError:
            return 0

    def end(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(90) == 130
        self.errors.close()


def needs(folder, job):
    """Bytes of each store that the largest of the policies takes."""
    run = Run(folder, job, "--local")
    try:
        lent = [[device["lent_slots"] for device in ctl(folder, "policy", "set", *words, "--dry-run", "-o", "json",
                                                        "--timeout", "60")["devices"]] for words in POLICIES]
        ctl(folder, "policy", "set", "bpipe", "4", "--wait", "-o", "json")
        room = wait_until(lambda: ctl(folder, "leases", "list", "-o", "json"), 60, "no leases")[0]["room_bytes"]
    finally:
        run.end()
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
                                          str(max(capacity, GRANULE))))
                places = [f"services.{name}=[" + ", ".join(f'"{s.address}"' for s in group) + "]"
                          for name, group in (("stages", services), ("stores", stores))]
                run = Run(folder, job, *(word for place in places for word in ("--set", place)))
                at = [word for store in stores for word in ("--store", store.address)]
                for words in POLICIES * 3:
                    ctl(folder, "policy", "set", *words, "--wait", "-o", "json")
                    # The plan before goes as its last session is closed; then one plan has it all, under the job's name.
                    wait_until(lambda: len(plans_of(folder, *at, "--job", "exact")) == 1, 60, "two plans hold rooms")
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
                print("ok quotas by name")
                made = run.steps()
                wait_until(lambda: run.steps() > made + 1, 60, "no step after all that")
                run.end()
            finally:
                for store in stores:
                    store.kill(signal.SIGKILL)
        events = [event for event in read_report(run.report) if event["event"] == "step"]
        assert sum(stage["recomputed"] for event in events for stage in event["stages"]) == 0
        some = min(len(events), 300)
        expected = losses(run_job(folder, job, "--local", "--steps", str(some), timeout=600)[0])
        assert losses(events)[:some] == expected, "other losses"
        print(f"ok {len(events)} steps")


if __name__ == "__main__":
    main()
