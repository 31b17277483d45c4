# SPDX-License-Identifier: Apache-2.0
"""Blocks parked in memory of the host change nothing: under offload, bpipe and cap with balance.host, for schedules of each
kind, over shm and tcp, the losses are those of unlimited memory bit by bit, nothing is made again, and devices hold no more
than their slots. The host store killed, stopped, drained, or too small: made again to the same bits, or a refusal that
names what would do."""
import contextlib
import json
import os
import signal
import subprocess

from ballast import (CTL, GOLDEN, LONG, Run, Service, environment, losses, on, run_job, scratch, seed, small_inline, stages,
                     stages_of, wait_until, write_job)

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
    more = [("offload, 3 slots", (*policy("offload"), *slots(3)), 3, [8, 0, 0, 0], 2)] if LONG else []
    for name, arguments, most, evicted, host in (
            *more, ("offload, 2 slots, fewest", (*policy("offload"), *slots(2), *FEWEST), 2, [10, 8, 0, 0], 5),
            ("offload, 2 slots", (*policy("offload"), *slots(2)), 2, None, None),
            ("offload, 2 slots, a slow link", (*policy("offload"), *slots(2), "--set", "balance.rate=20MB"), 2, None, None),
            ("offload, 1 slot, fewest", (*policy("offload"), *slots(1), *FEWEST), 1, [16, 16, 16, 0], 9),
            ("offload over tcp", (*policy("offload"), *slots(2), *FEWEST, "--set", "balance.data_path=tcp"), 2,
             [10, 8, 0, 0], 5),
            ("bpipe and host", (*policy("bpipe"), *slots(2), *FEWEST), 2, [10, 8, 0, 0], None),
            ("cap and host", (*policy("cap"), "--set", "balance.cap=2", *FEWEST), 2, [10, 8, 0, 0], None)):
        report, _ = run_job(folder, job, "--local", *HOST, *arguments)
        assert losses(report) == expected, f"{name}: other losses"
        check(report, most, evicted, host)
        print(f"ok {name}")
    # What auto chooses is a matter of rates measured on a machine that others use: to park or to drop, within the slots.
    report, _ = run_job(folder, job, "--local", *HOST, *policy("auto"), *slots(2), "--steps", "12")
    assert losses(report)[:3] == expected, "auto, 2 slots: other losses"
    for stage in stages_of(report[-1:]):
        assert stage["peak_slots"] <= stage["own_slots"] <= 2 and stage["lost"] == 0, stage
        assert stage["loaded"] == stage["evicted"] and stage["recomputed"] == stage["dropped"], stage
    print("ok auto, 2 slots")
    return expected


def schedules(folder):
    """One slot less than each stage has at its peak, where that can be."""
    for schedule in ("gpipe", "interleaved", *(("eager-1f1b", "grouped-interleaved", "1f1b-v") if LONG else ())):
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


def split_schedules(folder):
    """Split backwards, whose blocks keep their slots from I to W: orders within more slots than the cap."""
    job = write_job(folder, name="split.yaml", model=small_inline(hidden=32, layers=8, seq=16),
                    data={"train": f"{GOLDEN}/gpt2/tokens.bin"}, train={"steps": 2, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 4})
    expected = losses(run_job(folder, job, "--local")[0])
    for schedule, most, cap in (("zb-v", 6, 4), *((("adaptive", 12, 6), ("zb-v", 6, 5)) if LONG else ())):
        for mode in ((), FEWEST):
            report, _ = run_job(folder, job, "--local", *HOST, *policy("offload"), "--set", f"pipeline.schedule={schedule}",
                                *slots(most), "--set", f"balance.cap={cap}", *mode)
            assert losses(report) == expected, f"{schedule}: other losses"
            assert all(stage["evicted"] > 0 for stage in stages_of(report)), f"{schedule}: a stage parked nothing"
            check(report, cap)
        print(f"ok {schedule} within {cap} slots")


def simulated(folder, job, *arguments):
    done = subprocess.run([CTL, "simulate", job, "-o", "json", *arguments], env=environment(folder), text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def made_for_the_host(folder):
    """Within memory.slots alone offload has an order made for the host, and parks what that keeps above the slots: as
    simulated, with the bits of none, also where the policy changes to none and back while it runs."""
    job = write_job(folder, name="hosted.yaml", model=small_inline(hidden=32, layers=8, seq=16),
                    data={"train": f"{GOLDEN}/gpt2/tokens.bin"}, train={"steps": 2, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 4})
    expected = losses(run_job(folder, job, "--local")[0])
    for schedule, most in (("zb-h1", 3), ("zb-v", 4)):
        words = ("--set", f"pipeline.schedule={schedule}", *slots(most), *HOST)
        found = simulated(folder, job, *words, *policy("offload"))
        evicted = [stage["evictions"] for stage in found["stages"]]
        assert sum(evicted) > 0 and found["order"] != simulated(folder, job, *words, *policy("none"))["order"], found
        report, _ = run_job(folder, job, "--local", *words, *policy("offload"))
        assert losses(report) == expected, f"{schedule}: other losses"
        check(report, most, evicted, found["host_slots"])
        print(f"ok {schedule} made for the host within {most} slots, {evicted} evictions")
    run = Run(folder, job, "--local", *words, *policy("offload"), "--set", "train.steps=100000")
    try:
        run.wait_for(lambda steps: steps, "no step")
        for change, order in ("none", "for none"), ("offload", "for balancing"):
            done = subprocess.run([CTL, "policy", "set", change, "--wait", "-o", "json"], env=environment(folder), text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
            assert done.returncode == 0, (change, done.stderr)
            answer = json.loads(done.stdout)
            assert answer["order"] == order, answer
            run.wait_for(lambda steps, at=answer["from_step"]: len(steps) > at, "no steps under it")
    finally:
        run.end(130, signal.SIGINT)
    steps = run.steps()
    for step in steps:
        assert [stage["evicted"] for stage in step["stages"]] == (evicted if step["policy"] == "offload" else [0] * 4), step
    assert {step["policy"] for step in steps} == {"none", "offload"} and steps[-1]["policy"] == "offload", steps[-1]
    again = run_job(folder, job, "--local", "--steps", str(len(steps)), "--set", "pipeline.stages=1", timeout=600)[0]
    assert losses(steps) == losses(again), "other losses"
    print(f"ok from offload to none and back in {len(steps)} steps")


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
    """Ranks of two replicas and two tensor ranks share the host store, each with slots of its own."""
    job = write_job(folder, name="planes.yaml", model=small_inline(hidden=32, layers=2, seq=16),
                    data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                    train={"steps": 2, "micro_batch": 1, "micro_batches": 8},
                    pipeline={"stages": 2, "schedule": "gpipe"},
                    parallel={"tensor_parts": 2, "data_parts": 2})
    expected = losses(run_job(folder, job, "--local")[0])
    for tensor, data in ((2, 1), (1, 2), (2, 2)) if LONG else ((2, 2),):
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
    expected = losses(run_job(folder, job, "--local", "--steps", str(len(steps)), *policy("none"), *slots(16), "--set",
                              "pipeline.stages=1", timeout=600)[0])
    assert losses(steps) == expected, "other losses"
    print(f"ok killed and stopped, policies changed: {len(steps)} steps")


def named(folder, job, expected):
    """Stages and host stores that were started by themselves, on two machines by the names in their addresses: each stage
    uses its own machine's, with stores of devices or without."""
    with contextlib.ExitStack() as stack:
        hosts = [Service(folder, "activation-store", "--listen", f"127.0.0.{i}:0", "--capacity", "64MiB", "--turns")
                 for i in (2, 1)]
        devices = [Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64MiB") for _ in range(4)]
        for store in hosts + devices:
            stack.callback(store.kill)
        services = stack.enter_context(stages(folder, 4, prefixes=[((), f"127.0.0.{i}:0") for i in (1, 2, 2, 1)]))
        on_hosts = ("--set", "services.host_stores=" + json.dumps([host.address for host in hosts]), *HOST, *slots(2), *FEWEST)
        for name, arguments in (("offload", (*on(services), *policy("offload"))),
                                ("cap without device stores", (*on(services), *policy("cap"), "--set", "balance.cap=2")),
                                ("bpipe with device stores", (*on(services, devices), *policy("bpipe")))):
            report, _ = run_job(folder, job, *on_hosts, *arguments)
            assert losses(report) == expected, f"{name}: other losses"
            used = {store["host"]: store for store in report[-1]["stores"] if "host" in store}
            assert [used[i]["pid"] for i in (0, 1)] == [host.pid for host in hosts], used
            away = {"offload": (2, 3), "cap without device stores": (2, 3)}.get(name)  # of stage 1, and of stage 0
            assert away is None or tuple(used[i]["lent_slots"] for i in (0, 1)) == away, used
            assert sum(store["lent_slots"] for store in report[-1]["stores"]) == 5, report[-1]["stores"]
            print(f"ok {name} on two machines")
        _, done = run_job(folder, job, *on(services), *on_hosts[2:], *policy("offload"), "--set",
                          f"services.host_stores=['unix:{folder}/nobody', '{hosts[0].address}']", expect=5)
        assert "host store 0" in done.stderr and "nobody" in done.stderr, done.stderr
        _, done = run_job(folder, job, *on(services), *on_hosts[2:], *policy("offload"), expect=2)
        assert "services.host_stores: is missing" in done.stderr, done.stderr
        report, _ = run_job(folder, job, *on(services), *policy("offload"), *slots(2), *FEWEST, "--set", "balance.host=64GiB",
                            "--set", "services.host_stores=['%s']" % hosts[1].address)
        assert losses(report) == expected, "less than the job says but enough: other losses"
        assert report[-1]["stages"][0]["loaded"] > 0, report[-1]
        near = Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64MiB", "--turns", "--numa-node",
                       "0")
        stack.callback(near.kill)
        report, _ = run_job(folder, job, *on(services), *policy("offload"), *slots(2), *FEWEST, *HOST, "--set",
                            f"services.host_stores=['{near.address}']")
        assert losses(report) == expected and report[-1]["stages"][0]["loaded"] > 0, "on a NUMA node: other losses"
        with open(near.log_path, encoding="utf-8") as file:
            assert "memory of the host is taken on NUMA node 0" in file.read()
        small = Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64KiB", "--turns")
        stack.callback(small.kill)
        report, done = run_job(folder, job, *on(services), *policy("offload"), *slots(2), *FEWEST, *HOST, "--set",
                               f"services.host_stores=['{small.address}']", expect=8)
        assert not report and f"host store 0 ({small.address})" in done.stderr, done.stderr
        assert "a larger --capacity" in done.stderr and "free 64.0 KiB" in done.stderr, done.stderr
        print("ok host stores that are not there, or full, or lend less than the job says but enough")


def quotas(folder, job):
    """A quota below what is held refuses the next plan, names the store, and loses nothing."""
    run = Run(folder, job, "--local", *HOST, *policy("offload"), *slots(2), *FEWEST, "--steps", "1000000")

    def ctl(*words, expect=0):
        done = subprocess.run([CTL, *words], env=environment(folder), text=True, stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=120)
        assert done.returncode == expect, (words, done.returncode, done.stderr)
        return done

    try:
        run.wait_for(lambda s: s and s[-1]["stages"][0]["loaded"] > 0, "nothing is parked")
        ctl("policy", "set", "offload", "3", "--wait")
        ctl("quota", "ballast", "65536")
        done = ctl("policy", "set", "offload", "1", "--mode", "fewest", "--wait", expect=8)
        assert "host store 0" in done.stderr and "the quota is 64.0 KiB, " in done.stderr, done.stderr
        seen = len(run.steps())
        run.wait_for(lambda s: len(s) > seen + 2 and s[-1]["stages"][0]["recomputed"] == 0, "no step after the refusal")
        ctl("quota", "ballast", "unlimited")
        ctl("policy", "set", "offload", "1", "--mode", "fewest", "--wait")
    finally:
        run.end(130, signal.SIGINT)
    print("ok quota")


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
        named(folder, job, pipelines(folder, job))
        quotas(folder, job)
        schedules(folder)
        split_schedules(folder)
        made_for_the_host(folder)
        one_stage(folder)
        planes(folder)
        faults(folder, choice)


if __name__ == "__main__":
    main()
