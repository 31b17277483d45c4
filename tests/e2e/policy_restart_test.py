# SPDX-License-Identifier: Apache-2.0
"""Policies are changed while the driver is killed at random points and started again: a change that was answered is in
force from the step that was named on, also under later drivers, with the history before it; versions never fall; and the
losses are those of a run under one policy. Some of the policies bring another order of operations with them. BALLAST_TEST_KILLS sets how often (default 3)."""
import contextlib
import json
import os
import signal
import subprocess
import threading
import time

from ballast import CTL, Service, environment, losses, read_report, run_job, scratch, seed, small_inline, stages, wait_until, write_job

POLICIES = [["bpipe", "7"], ["none"], ["auto", "7"], ["cap", "7"], ["drop", "7"]]  # the first and the fourth have another order


def policy(folder, address, *words):
    return subprocess.run([CTL, "policy", *words, "-o", "json", "--endpoint", address, "--timeout", "60"],
                          env=environment(folder), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120)


def export(folder, name):
    """An order that the job has, so that no driver has to search it."""
    path = os.path.join(folder, f"{name}.csv")
    subprocess.run([CTL, "schedule", "export", "--schedule", "grouped-interleaved", "--stages", "4", "--micro-batches", "8",
                    "--to", path, *(["--pooled"] if name == "pooled" else [])], env=environment(folder), check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=120)
    return path


def flip(folder, address, over, answers, failures):
    """Sets one policy after the other until `over`; whatever is answered goes to `answers`, bad failures to `failures`."""
    i = 0
    while not over.is_set():
        done = policy(folder, address, "set", *POLICIES[i % len(POLICIES)])
        if done.returncode == 0:
            answers.append(json.loads(done.stdout))
            i += 1
        elif done.returncode not in (4, 5):  # 4: it is just being set up, or over; 5: nobody is there
            failures.append(done.stderr)
            return


def check(events, answers):
    versions = [event["policy_version"] for event in events]
    assert versions == sorted(versions) and versions[0] == 1, versions
    assert answers, "nothing was answered"
    for answer in answers:
        at = answer["from_step"]
        if at <= len(events):
            assert events[at - 1]["policy_version"] >= answer["version"], (answer, events[at - 1])
            assert at == 1 or events[at - 2]["policy_version"] < answer["version"], (answer, events[at - 2])
        for event in events:
            if event["policy_version"] == answer["version"]:
                assert event["policy"] == answer["policy"], (answer, event)


def main():
    choice = seed()
    kills = int(os.environ.get("BALLAST_TEST_KILLS", "3"))
    with scratch() as folder:
        settings = {"model": small_inline(hidden=32, layers=8),
                    "pipeline": {"stages": 4, "schedule": "grouped-interleaved"},
                    "train": {"steps": 100 + 40 * kills, "micro_batch": 1, "micro_batches": 8, "lr": 1e-3}}
        reference, _ = run_job(folder, write_job(folder, **{**settings, "pipeline": {"stages": 1}}), "--local")
        with stages(folder, 4) as services, contextlib.ExitStack() as stack:
            address = f"unix:{folder}/driver.sock"
            stores = [Service(folder, "activation-store", "--listen", f"unix:{folder}/store-{i}", "--capacity", "64 MiB")
                      for i in range(4)]
            for store in stores:
                stack.callback(store.end)
            job = write_job(folder, **settings, services={"stages": [s.address for s in services], "driver": address,
                                                          "stores": [s.address for s in stores]})
            report = os.path.join(folder, "interrupted.jsonl")
            over, answers, failures = threading.Event(), [], []
            errors = open(os.path.join(folder, "stderr.txt"), "w+")

            orders = [word for name in ("own", "pooled") for word in ("--order", export(folder, name))]

            def start():
                return Service(folder, "ballast-driver", "--job", job, *orders, "--listen", address, "--linger")

            driver = start()
            control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            flipper = threading.Thread(target=flip, args=(folder, address, over, answers, failures))
            try:
                wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was recorded")
                flipper.start()
                wait_until(lambda: answers or failures, 60, "no change was answered")
                for _ in range(kills):
                    time.sleep(choice.uniform(0.0, 0.4))
                    driver.kill(signal.SIGKILL)
                    driver = start()
                known = wait_until(lambda: (lambda done: done.returncode == 0 and json.loads(done.stdout))(
                    policy(folder, address, "history")), 60, "no history")
                code = control.wait(240)
                errors.seek(0)
                assert code == 0, f"exit code {code}\n{errors.read()[-4000:]}\n{driver.log()[-4000:]}"
            finally:
                over.set()
                if flipper.is_alive():
                    flipper.join(120)
                if control.poll() is None:
                    control.kill()
                driver.end()
            assert not failures, failures[0]
            events = [event for event in read_report(report) if event["event"] == "step"]
            assert losses(events) == losses(reference), "changes of policy and deaths of drivers changed the losses"
            check(events, answers)
            by_version = {answer["version"]: answer["policy"] for answer in answers}
            versions = [record["version"] for record in known]
            assert versions == list(range(versions[0], versions[0] - len(versions), -1)), versions
            for record in known:
                assert by_version.get(record["version"], record["policy"]) == record["policy"], record
            assert sum(stage["evicted"] for event in events for stage in event["stages"]) > 0, "no block was moved"
            for service in (*services, *stores):
                assert service.process.poll() is None, "stages and stores live on"
            print(f"ok {kills} kills, {len(answers)} changes in {len(events)} steps, history of {len(known)}")


main()
