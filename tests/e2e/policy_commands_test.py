# SPDX-License-Identifier: Apache-2.0
"""`ballastctl policy` on a live run: get, set, history, rollback, dry runs and every output format; what every refusal
says and its exit code, and that a refusal changes nothing; a driver that is stopped is a deadline; stages and stores
pass policies on to their driver."""
import json
import os
import signal
import subprocess
import time

from ballast import (CTL, Service, assert_nothing_left, descendants, environment, losses, program_of, read_report,
                     run_job, scratch, shared_memory_files, small_inline, stages, wait_until, write_job)

STEPS = 100000  # more than the test lets run


def policy(folder, *words, expect=0):
    done = subprocess.run([CTL, "policy", *words], env=environment(folder), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == expect, f"policy {words}: exit {done.returncode}, expected {expect}: {done.stderr}"
    return done


def get(folder):
    return json.loads(policy(folder, "get", "-o", "json", "--timeout", "60").stdout)


def in_force(folder):
    now = get(folder)
    return {key: now[key] for key in ("policy", "cap", "version", "from_step")}


REFUSALS = [
    (2, "is no policy: none, bpipe, cap, drop, offload or auto", "set", "level"),
    (2, "needs a number of slots", "set", "cap"),
    (2, "has no cap", "set", "none", "3"),
    (2, "is no cap", "set", "cap", "many"),
    (2, "is no cap", "set", "cap", "0"),
    (2, "is no cap", "set", "cap", "99999999999"),
    (2, "is no mode of balancing", "set", "bpipe", "--mode", "quick"),
    (2, "moves nothing and names no devices", "set", "none", "--device", "1"),
    (2, "devices 0 to 63", "set", "bpipe", "--device", "64"),
    (2, "usage", "set"),
    (2, "rollbak", "rollbak"),
    (2, "is no version", "rollback", "last"),
    (3, "device 7 does not exist: the devices are 0 to 3", "set", "cap", "3", "--device", "7"),
    (3, "version 1234 is not known", "rollback", "1234"),
    (8, "the smallest that works is 3", "set", "cap", "2"),
    (8, "the smallest that works is 3", "set", "bpipe", "1"),
    (8, "the smallest that works is", "set", "cap", "2", "--dry-run"),
]


def check_refusals(folder):
    before = in_force(folder)
    for code, text, *words in REFUSALS:
        done = policy(folder, *words, expect=code)
        assert text in done.stderr and not done.stdout, f"{words}: {done.stderr!r} {done.stdout!r}"
    policy(folder, "get", "--endpoint", f"unix:{folder}/nobody", expect=5)
    assert in_force(folder) == before, "a refusal changed something"
    print(f"ok {len(REFUSALS)} refusals")


def check_formats(folder):
    now = get(folder)
    assert [device["device"] for device in now["devices"]] == [0, 1, 2, 3]
    assert [device["own_slots"] for device in now["devices"]] == [4, 3, 2, 1]
    lines = policy(folder, "get").stdout.splitlines()
    assert lines[0].split() == ["POLICY", "CAP", "VERSION", "FROM", "STEP"] and len(lines) == 2, lines
    assert "4 3 2 1" in policy(folder, "get", "-o", "wide").stdout
    assert "policy: " in policy(folder, "get", "-o", "yaml").stdout
    assert policy(folder, "get", "-o", "name").stdout.strip() == now["policy"]
    rows = [json.loads(line) for line in policy(folder, "history", "-o", "ndjson").stdout.splitlines()]
    assert rows == json.loads(policy(folder, "history", "-o", "json").stdout)
    assert [row["version"] for row in rows] == list(range(now["version"], 0, -1)), rows
    assert "CHOSEN" in policy(folder, "history", "-o", "wide").stdout.splitlines()[0].split()
    print("ok formats")


def check_changes(folder):
    assert in_force(folder) == {"policy": "none", "cap": None, "version": 1, "from_step": 1}
    four = json.loads(policy(folder, "set", "cap", "4", "-o", "json", "--wait").stdout)
    assert (four["version"], four["cap"], four["unchanged"]) == (2, 4, False) and four["from_step"] > 1, four
    again = policy(folder, "set", "cap", "4", "-o", "json", "--wait")
    assert json.loads(again.stdout)["unchanged"] and "in force already" in again.stderr
    five = json.loads(policy(folder, "set", "cap", "5", "--dry-run", "-o", "json", "--timeout", "60").stdout)
    assert (five["version"], five["from_step"]) == (None, None) and len(five["devices"]) == 4, five
    assert in_force(folder)["version"] == 2, "a dry run changed something"
    back = json.loads(policy(folder, "rollback", "-o", "json", "--wait").stdout)
    assert (back["policy"], back["version"], back["restores"]) == ("none", 3, 1), back
    back = json.loads(policy(folder, "rollback", "2", "-o", "json", "--wait").stdout)
    assert (back["policy"], back["cap"], back["version"], back["restores"]) == ("cap", 4, 4, 2), back
    print("ok changes")
    return four["from_step"], back["from_step"]


def check_stopped_driver(folder, driver):
    before = in_force(folder)
    os.kill(driver, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        done = policy(folder, "get", "--timeout", "0.5", expect=6)
        assert not done.stdout
        between = time.monotonic()
        done = policy(folder, "set", "cap", "6", "--timeout", "0.5", expect=6)
        assert "may still come into force" in done.stderr, done.stderr
        done = policy(folder, "set", "cap", "6", "--dry-run", "--timeout", "0.5", expect=6)
        assert "changes nothing" in done.stderr and "come into force" not in done.stderr, done.stderr
        # Sixty times what was asked for: starting a program on a busy machine is in it.
        assert between - begin < 30 and time.monotonic() - between < 45, "a command outlives its --timeout"
    finally:
        os.kill(driver, signal.SIGCONT)
    # The driver has the request or not; either way it goes on with one of the two.
    after = in_force(folder)
    assert after == before or after["cap"] == 6, after
    print("ok stopped driver")


def lines_of(report):
    with open(report) as file:
        return file.read().count("\n")


def check_stopped_stores(folder, stores, report):
    """Stores that do not answer: the policy before goes on, who is silent is named, and steps do not wait for it."""
    before = in_force(folder)
    for store in stores:
        os.kill(store, signal.SIGSTOP)
    try:
        made = lines_of(report)
        done = policy(folder, "set", "bpipe", "--wait", expect=4)
        made = lines_of(report) - made
    finally:
        for store in stores:
            os.kill(store, signal.SIGCONT)
    assert "stays in force, bpipe 3 was refused: " in done.stderr and "store of device" in done.stderr, done.stderr
    assert made > 3, f"{made} steps while the stores were asked"
    assert in_force(folder) == before, "a refusal changed something"

    def is_set():
        return subprocess.run([CTL, "policy", "set", "bpipe", "--wait"], env=environment(folder), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=120).returncode == 0
    wait_until(is_set, 60, "the stores are back, and bpipe is refused")
    now = get(folder)
    assert (now["policy"], now["version"]) == ("bpipe", before["version"] + 1), now
    assert all(device["own_slots"] + device["lent_slots"] <= 3 for device in now["devices"]), now
    print("ok stopped stores")


def check_full_recomputation(folder):
    """Under full recomputation there is nothing to evict."""
    job = write_job(folder, "full.json", model=small_inline(hidden=32), train={"steps": STEPS},
                    pipeline={"stages": 2, "recompute": "full"})
    report = os.path.join(folder, "full.jsonl")
    run = subprocess.Popen([CTL, "run", job, "--local", "--report", report], env=environment(folder),
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was recorded")
        for words in (["set", "bpipe"], ["set", "cap", "1"]):
            done = policy(folder, *words, expect=2)
            assert "nothing to evict" in done.stderr, done.stderr
        assert in_force(folder)["version"] == 1
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(120)
    print("ok full recomputation")


def check_forwarding(folder):
    """Stages know their driver, stores those that announce themselves, and both relay policy calls."""
    with stages(folder, 2) as services:
        stores, driver = [], None
        try:
            for _ in range(2):
                stores.append(Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "1 MiB"))
            for service in (*services, *stores):
                done = policy(folder, "get", "--endpoint", service.address, "--timeout", "60", expect=4)
                assert "no driver is known here" in done.stderr, done.stderr
            job = write_job(folder, "served.json", train={"steps": STEPS}, model=small_inline(hidden=32),
                            services={"stages": [s.address for s in services], "stores": [s.address for s in stores]})
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0")
            for at, service in enumerate((*services, *stores)):
                def known():
                    return subprocess.run([CTL, "policy", "get", "--endpoint", service.address, "--timeout", "60"],
                                          env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL, timeout=120).returncode == 0
                wait_until(known, 60, f"{service.address} relays nothing")
                answer = json.loads(policy(folder, "set", "cap", str(2 + at), "--endpoint", service.address, "--wait",
                                           "-o", "json").stdout)
                assert (answer["version"], answer["cap"]) == (2 + at, 2 + at), answer
                policy(folder, "set", "cap", "1", "--endpoint", service.address, expect=8)
            assert json.loads(policy(folder, "get", "--endpoint", driver.address, "-o", "json").stdout)["version"] == 5
        finally:
            for service in (driver, *stores):
                if service is not None:
                    service.end()
    print("ok relayed by stages and stores")


def main():
    shared = shared_memory_files()
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=32), pipeline={"stages": 4},
                        train={"steps": STEPS, "micro_batch": 1, "micro_batches": 8})
        report = os.path.join(folder, "report.jsonl")
        with open(os.path.join(folder, "stderr.txt"), "w+") as errors:
            run = subprocess.Popen([CTL, "run", job, "--local", "--report", report], env=environment(folder),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            pids = []
            try:
                wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was recorded")
                pids = descendants(run.pid)
                from_steps = check_changes(folder)
                check_refusals(folder)
                check_formats(folder)
                check_stopped_stores(folder, [pid for pid in pids if program_of(pid) == "activation-store"], report)
                check_stopped_driver(folder, next(pid for pid in pids if program_of(pid) == "ballast-driver"))
            finally:
                run.send_signal(signal.SIGINT)
                code = run.wait(120)
            errors.seek(0)
            assert code == 130, f"exit code {code}: {errors.read()[-3000:]}"
        events = [event for event in read_report(report) if event["event"] == "step"]
        for version, step in zip((2, 4), from_steps):
            before, first = events[step - 2], events[step - 1]
            assert first["policy_version"] == version and first["policy"] == "cap", first
            assert before["policy_version"] < version, before
        fixed, _ = run_job(folder, job, "--local", "--set", "train.steps=10")
        assert losses(fixed) == losses(events[:10]), "a policy changed the losses"
        assert_nothing_left(folder, pids, shared)
        print(f"ok {len(events)} steps")
        check_full_recomputation(folder)
        check_forwarding(folder)


main()
