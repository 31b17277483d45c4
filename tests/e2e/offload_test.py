# SPDX-License-Identifier: Apache-2.0
"""Blocks parked in memory of the host change nothing: under offload, bpipe and cap with balance.host, for schedules of each
kind, over shm and tcp, the losses are those of unlimited memory bit by bit, nothing is made again, and devices hold no more
than their slots. The host store killed, stopped, drained, or too small: made again to the same bits, or a refusal that
names what would do."""
import json
import os
import signal
import subprocess

from ballast import (CTL, GOLDEN, Run, environment, losses, run_job, scratch, seed, small_inline, stages_of, wait_until,
                     write_job)

HOST = ("--set", "balance.host=64MiB")
FEWEST = ("--set", "balance.mode=fewest")


def slots(count):
    return ("--set", f"memory.slots={count}")


def policy(name):
    return ("--set", f"balance.policy={name}")


def check(report, most, evicted=None, host=None):
    """Devices and the host store of every step, and what each stage evicted."""
    for step in (event for event in report if event["event"] == "step"):
        devices, hosts = [s for s in step["stores"] if "device" in s], [s for s in step["stores"] if "host" in s]
        assert step["stores"] == devices + hosts and [s["host"] for s in hosts] == [0], step["stores"]
        assert [s["store"] for s in step["stores"]] == list(range(len(devices) + 1))
        for stage, store in zip(step["stages"], devices):
            assert stage["peak_slots"] <= stage["own_slots"], stage
            assert stage["own_slots"] + store["lent_slots"] <= most, (stage, store)
            assert stage["loaded"] == stage["evicted"], stage
            assert stage["lost"] == stage["dropped"] == stage["recomputed"] == 0, stage
        for store in step["stores"]:
            assert store["peak_leased"] <= store["lent_slots"], store
        assert hosts[0]["pid"] > 0 and hosts[0]["peak_leased"] > 0, hosts
        if evicted is not None:
            assert [stage["evicted"] for stage in step["stages"]] == evicted, step["stages"]
        if host is not None:
            assert hosts[0]["lent_slots"] == host, hosts
            assert all(store["lent_slots"] == 0 for store in devices), devices


def pipelines(folder, job):
    """1f1b, in both modes and over every path."""
    expected = losses(run_job(folder, job, "--local")[0])
    for name, arguments, most, evicted, host in (
            ("offload, 2 slots, fewest", (*policy("offload"), *slots(2), *FEWEST), 2, [10, 8, 0, 0], 5),
            ("offload, 3 slots", (*policy("offload"), *slots(3)), 3, [8, 0, 0, 0], 2),
            ("offload, 1 slot, fewest", (*policy("offload"), *slots(1), *FEWEST), 1, [16, 16, 16, 0], 9),
            ("offload over tcp", (*policy("offload"), *slots(2), *FEWEST, "--set", "balance.data_path=tcp"), 2,
             [10, 8, 0, 0], 5),
            ("bpipe and host", (*policy("bpipe"), *slots(2), *FEWEST), 2, [10, 8, 0, 0], None),
            ("cap and host", (*policy("cap"), "--set", "balance.cap=2", *FEWEST), 2, [10, 8, 0, 0], None)):
        report, _ = run_job(folder, job, "--local", *HOST, *arguments)
        assert losses(report) == expected, f"{name}: other losses"
        check(report, most, evicted, host)
        print(f"ok {name}")
    return expected


def schedules(folder):
    """One slot less than each stage has at its peak, where that can be."""
    for schedule in ("gpipe", "eager-1f1b", "interleaved", "grouped-interleaved", "1f1b-v"):
        chunks = 1 if schedule in ("gpipe", "eager-1f1b") else 2
        job = write_job(folder, name=f"{schedule}.yaml", model=small_inline(hidden=32, layers=4 * chunks, seq=16),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 2, "micro_batch": 1, "micro_batches": 8},
                        pipeline={"stages": 4, "schedule": schedule})
        plain, _ = run_job(folder, job, "--local")
        cap = max(stage["own_slots"] for stage in stages_of(plain)) - 1
        for mode in ((), FEWEST):
            report, _ = run_job(folder, job, "--local", *HOST, *policy("offload"), "--set", f"balance.cap={cap}", *mode)
            assert losses(report) == losses(plain), f"{schedule}: other losses"
            check(report, cap)
        print(f"ok {schedule} within {cap} slots")


def one_stage(folder):
    """A pipeline of one stage has no peer, but a host."""
    job = write_job(folder, name="one.yaml", model=small_inline(hidden=32, layers=2, seq=16),
                    data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                    train={"steps": 2, "micro_batch": 1, "micro_batches": 6},
                    pipeline={"stages": 1, "schedule": "gpipe"})
    expected = losses(run_job(folder, job, "--local")[0])
    report, _ = run_job(folder, job, "--local", *HOST, *policy("offload"), *slots(3))
    assert losses(report) == expected, "one stage: other losses"
    check(report, 3)
    print("ok one stage")


def planes(folder):
    """Ranks of two replicas and two tensor ranks share the host store, each with rooms of its own."""
    job = write_job(folder, name="planes.yaml", model=small_inline(hidden=32, layers=2, seq=16),
                    data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                    train={"steps": 2, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 2, "schedule": "gpipe"},
                    parallel={"tensor_parts": 2, "data_parts": 2})
    expected = losses(run_job(folder, job, "--local")[0])
    for tensor, data in ((2, 1), (1, 2), (2, 2)):
        report, _ = run_job(folder, job, "--local", *HOST, *policy("offload"), "--set", f"parallel.tensor={tensor}",
                            "--set", f"parallel.data={data}", "--set", "balance.cap=3")
        assert losses(report) == expected, f"{tensor} tensor ranks, {data} replicas: other losses"
        check(report, 3)
        print(f"ok {tensor} tensor ranks, {data} replicas")


def host_store(steps):
    return next(store["pid"] for store in steps[-1]["stores"] if "host" in store)


def faults(folder, choice):
    """Killed, and stopped for longer than a session lives."""
    job = write_job(folder, name="long.yaml", model=small_inline(hidden=32, layers=4, seq=16),
                    data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                    train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4},
                    memory={"slots": 2}, balance={"policy": "offload", "mode": "fewest", "host": "64MiB"})
    run = Run(folder, job, "--local")
    try:
        steps = run.wait_for(lambda s: s and all(stage["loaded"] for stage in s[-1]["stages"][:2]), "nothing is parked")
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
            store, seen = host_store(steps), len(steps)
            wait_until(lambda: len(run.steps()) > seen + choice.randrange(3), 60, "no step")
            os.kill(store, number)
            if number == signal.SIGSTOP:
                steps = run.wait_for(lambda s: s[-1]["stages"][0]["recomputed"] > 0, "nothing was made again", 60)
                os.kill(store, signal.SIGCONT)
            old = store if number == signal.SIGKILL else 0
            steps = run.wait_for(lambda s: host_store(s) != old and s[-1]["stages"][0]["recomputed"] == 0 and
                                 s[-1]["stages"][0]["loaded"] > 0, "nothing is parked at the host again", 60)
        # Policies change while it runs, to each that knows hosts and back.
        for words in (("none",), ("offload", "2", "--mode", "fewest"), ("bpipe", "2", "--mode", "fewest"), ("offload", "3")):
            done = subprocess.run([CTL, "policy", "set", *words, "--wait"], env=environment(folder), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
            wanted = 4 if words == ("none",) else 0  # memory.slots is 2
            assert done.returncode == (8 if wanted else 0), (words, done.returncode, done.stderr)
    finally:
        run.end(130, signal.SIGINT)
    steps = run.steps()
    expected = losses(run_job(folder, job, "--local", "--steps", str(len(steps)), *policy("none"), "--set",
                              "memory.slots=4", timeout=600)[0])
    assert losses(steps) == expected, "other losses"
    print(f"ok killed and stopped, policies changed: {len(steps)} steps")


def refusals(folder, job):
    for arguments, code, message in (
            ((*policy("offload"), *slots(2)), 2, "balance.host: is missing; the policy offload parks blocks"),
            ((*policy("offload"), *slots(1), *FEWEST, "--set", "balance.host=256KiB"), 2, "is enough for this cap"),
            ((*policy("offload"), *slots(2), *HOST, "--set", "pipeline.recompute=full"), 2, "nothing to evict"),
            ((*policy("offlaod"),), 2, "did you mean 'offload'?"),
            ((*HOST, "--set", "services.host_stores=[]", *policy("offload"), "--set", "balance.host=1KiB"), 2,
             "balance.host: must be at least 65536")):
        _, done = run_job(folder, job, "--local", *arguments, expect=code)
        assert message in done.stderr, done.stderr
    print("ok refusals")


def main():
    choice = seed()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=32, layers=4, seq=16),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 3, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4})
        refusals(folder, job)
        pipelines(folder, job)
        schedules(folder)
        one_stage(folder)
        planes(folder)
        faults(folder, choice)


if __name__ == "__main__":
    main()
