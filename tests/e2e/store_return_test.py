# SPDX-License-Identifier: Apache-2.0
"""A store that somebody else started is killed, stays away for some steps, and is started again at the same address: while
it is away every block for it is dropped and made again, once it is back blocks go there again and nothing is made again,
under the same policy, with the bits of an undisturbed run. Twice: over shared memory, and over tcp. Meanwhile the metrics of
stages and driver count, block by block, what the report says was lost, dropped and made again."""
import re
import signal
import subprocess

import prometheus
from ballast import (CTL, GOLDEN, Run, Service, environment, losses, on, run_job, scratch, small_inline, stages,
                     steps_so_far, wait_until, write_job)

STAGES = 4
STEPS = 4    # of each state that must be seen
EVICTED = 8  # by stage 0, to store 3, in a step


def start_store(folder, address):
    return Service(folder, "activation-store", "--listen", address, "--capacity", "64 MiB",
                   "--data-tcp", "127.0.0.1:0")


def parked(step):
    first = step["stages"][0]
    return first["loaded"] == EVICTED and first["recomputed"] == 0


def dropped(step):
    first = step["stages"][0]
    return first["dropped"] == first["recomputed"] == EVICTED and first["evicted"] == 0


COUNTERS = {"evicted": "evictions", "loaded": "loads", "lost": "lost_blocks", "dropped": "dropped_blocks",
            "recomputed": "recomputed_blocks"}


def metrics_address(service):
    return re.search(r"metrics on http://([^/]+)/metrics", service.log())[1]


def counted(address, prefix):
    metrics = prometheus.scrape(address)
    found = {key: metrics.get(f"{prefix}{name}_total") for key, name in COUNTERS.items()}
    return {**found, "steps": metrics.get(f"{prefix}steps_total")}


def check_counters(events, services, before):
    """Each stage's counters have moved by exactly what the report says of it, in all steps of the run. Every block that the
    plan parks was parked or given up."""
    for event in events:
        first = event["stages"][0]
        assert first["evicted"] + first["dropped"] == EVICTED, f"a step whose blocks are not all accounted for: {event}"
    for rank, (service, then) in enumerate(zip(services, before)):
        now = counted(metrics_address(service), "ballast_")
        moved = {key: now[key] - then[key] for key in now}
        said = {key: sum(event["stages"][rank][key] for event in events) for key in COUNTERS}
        assert moved == {**said, "steps": len(events)}, f"stage {rank}: counted {moved}, reported {said}"
        assert said["recomputed"] == said["lost"] + said["dropped"], said
        assert rank > 0 or min(said["dropped"], said["loaded"]) > 0, said


def check_run_counters(folder, report):
    """The driver's counters after n steps are the sums of the first n lines of the report."""
    done = subprocess.run([CTL, "dashboard", "-o", "name", "--timeout", "60"], env=environment(folder), text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    address = re.fullmatch(r"http://([^/]+)/", done.stdout.strip())[1]

    def agree():
        now = counted(address, "ballast_run_")
        steps = int(now.pop("steps"))
        events = steps_so_far(report)
        said = {key: sum(stage[key] for event in events[:steps] for stage in event["stages"]) for key in COUNTERS}
        return len(events) >= steps and now == said and now["dropped"] > 0
    wait_until(agree, 60, "the driver's counters are not what the report says")


def run_and_lose(folder, job, path, addresses, stores, services):
    before = [counted(metrics_address(service), "ballast_") for service in services]
    run = Run(folder, job, "--steps", "1000000", *on(services, addresses), "--set", f"balance.data_path={path}")

    def wait_for(state, after, what):
        return len(run.wait_for(lambda steps: sum(state(step) for step in steps[after:]) >= STEPS, f"{path}: {what}"))

    try:
        well = wait_for(parked, 0, "no steps that park blocks")
        stores[-1].kill(signal.SIGKILL)
        lost = wait_for(dropped, well, "no steps without the store")
        stores.append(start_store(folder, addresses[-1]))
        wait_for(parked, lost, "the store is back, and no block goes there")
        check_run_counters(folder, run.report)
        run.end(130, signal.SIGINT)
    finally:
        run.kill()
    events = steps_so_far(run.report)
    assert all(event["policy_version"] == 1 for event in events), "the policy has changed"
    states = ["parked" if parked(event) else "away" if dropped(event) else "changing" for event in events]
    back = len(states) - 1 - states[::-1].index("away")
    # A store is asked again between two steps: one step may see it come back, from the next on all is as before.
    assert set(states[back + 2:]) == {"parked"}, states[back:]
    check_counters(events, services, before)
    print(f"ok {path}: {len(events)} steps, {states.count('away')} without the store")
    return events


def main():
    metrics = [((), "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")] * STAGES
    with scratch() as folder, stages(folder, STAGES, prefixes=metrics) as services:
        stores = []
        job = write_job(folder, model=small_inline(hidden=32, layers=STAGES, seq=16),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 3, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": STAGES},
                        memory={"slots": 3}, balance={"policy": "bpipe"})
        try:
            stores += [start_store(folder, f"unix:{folder}/store-{i}") for i in range(STAGES)]
            addresses = [f"unix:{folder}/store-{i}" for i in range(STAGES)]
            runs = [run_and_lose(folder, job, path, addresses, stores, services) for path in ("auto", "tcp")]
        finally:
            for store in stores:
                store.kill(signal.SIGKILL)
        steps = max(len(run) for run in runs)
        expected = losses(run_job(folder, job, "--local", "--steps", str(steps), "--set", "balance.policy=none",
                                  "--set", "pipeline.stages=1", timeout=600)[0])
        assert all(losses(run) == expected[:len(run)] for run in runs), "other losses"
        print("ok the losses of an undisturbed run")


if __name__ == "__main__":
    main()
