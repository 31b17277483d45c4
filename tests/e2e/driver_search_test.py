# SPDX-License-Identifier: Apache-2.0
"""A driver that searches the order of its job for seconds is there meanwhile. It says what it does, to Status and as a
metric; a policy that is asked for then is set once it can be; told to end, it ends with 130
and has asked nothing of any stage. A driver that is killed again and again while it searches, for longer than a watcher
would wait for one that is not there, goes on with the same losses in the end, in the report of the same `ballastctl run`.
A job that has no order is refused with 2 and its reason."""
import json
import os
import re
import signal
import subprocess
import time

import prometheus
from ballast import BIN, CTL, Service, environment, losses, read_report, run_job, scratch, small_inline, stages, \
    steps_so_far, wait_until, write_job

STAGES = 4
AWAY_S = 12  # longer than BL_CTL_WATCH_TIMEOUT_MS
STEPS = 30
WAITS = "the order of schedule zb-v, which the driver searches"


def ctl(folder, *words, expect=0):
    done = subprocess.run([CTL, *words], env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == expect, f"{words}: exit code {done.returncode}\n{done.stderr}"
    return done


def status_of(folder, address):
    return json.loads(ctl(folder, "status", "--endpoint", address, "-o", "json", "--timeout", "20").stdout)


def start(folder, job, address, *more):
    return Service(folder, "ballast-driver", "--job", job, "--listen", address, *more)


def check_stopped(folder, job, address, services):
    driver = start(folder, job, address)
    driver.process.send_signal(signal.SIGTERM)
    code = driver.process.wait(60)
    assert code == 130, f"exit code {code}: {driver.log()}"
    for words in ("stopped before the first step: no checkpoint was written", "what stages hold stays there"):
        assert words in driver.log(), driver.log()
    for service in services:
        assert "following driver" not in service.log(), service.log()
    print("ok told to end while it searches, a driver ends with 130 and says what it leaves")


def check_told(folder, job, address):
    """What is asked of a driver that searches."""
    driver = start(folder, job, address, "--metrics-listen", "127.0.0.1:0")
    try:
        status = status_of(folder, address)
        assert status["phase"] == "starting" and status["waiting_for"] == WAITS, status
        assert status["steps"] == STEPS and status["stages"] == [], status
        seen = prometheus.scrape(re.search("metrics on http://(\\S+)/metrics", driver.log())[1])
        assert seen.get("ballast_run_phase", phase="starting") == 1, seen.text
        assert seen.get("ballast_run_phase", phase="running") == 0, seen.text
        refused = ctl(folder, "trace", "--endpoint", address, "--to", f"{folder}/none.json", expect=4)
        assert "the driver is starting" in refused.stderr, refused.stderr
        untold = ctl(folder, "stores", "--endpoint", address, expect=4)
        assert "the driver is starting and tells its stores later" in untold.stderr, untold.stderr
        told = json.loads(ctl(folder, "doctor", "--endpoint", address, "-o", "json").stdout)
        assert [row["state"] for row in told] == ["starting"], told
        record = json.loads(ctl(folder, "policy", "set", "none", "--endpoint", address, "-o", "json", "--timeout",
                                "100").stdout)
        assert record["policy"] == "none", record
    finally:
        driver.kill(signal.SIGKILL)
    print("ok a driver that searches says so, and sets a policy afterwards")


def check_killed(folder, job, address, reference):
    """Killed while it searches until a watcher would have given up."""
    report, errors = os.path.join(folder, "interrupted.jsonl"), open(os.path.join(folder, "stderr.txt"), "w+")
    driver = start(folder, job, address)
    control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=errors)
    try:
        wait_until(lambda: len(steps_so_far(report)) >= 3, 120, "no step was recorded")
        driver.kill(signal.SIGKILL)
        end, starts = time.monotonic() + AWAY_S, 0
        while time.monotonic() < end:
            driver = subprocess.Popen([os.path.join(BIN, "ballast-driver"), "--job", job, "--listen", address],
                                      env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            time.sleep(1)
            driver.kill()
            driver.wait()
            time.sleep(1)
            starts += 1
        assert control.poll() is None, f"the watcher has given up: {open(errors.name).read()}"
        driver = start(folder, job, address)
        code = control.wait(120)
        assert code == 0, f"exit code {code}\n{open(errors.name).read()}\n{driver.log()[-4000:]}"
        assert driver.process.wait(60) == 0, driver.log()
    finally:
        if control.poll() is None:
            control.kill()
            control.wait()
        errors.close()
    assert losses(read_report(report)) == losses(reference), "the report of an interrupted run differs"
    print(f"ok {starts} drivers died in their search, {STEPS} steps have the same bits")


def check_refused(folder, shape, address):
    """zb-v needs two blocks a device at least."""
    job = write_job(folder, name="tight.yaml", **dict(shape, memory={"slots": 1}))
    done = subprocess.run([os.path.join(BIN, "ballast-driver"), "--job", job, "--listen", address],
                          env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "memory.slots: 1 is below 2" in done.stderr, done
    print("ok a job without an order is refused")


def main():
    with scratch() as folder, stages(folder, STAGES) as services:
        address = f"unix:{folder}/driver.sock"
        shape = {"model": small_inline(hidden=32, layers=8, seq=16),
                 "train": {"steps": STEPS, "micro_batch": 1, "micro_batches": 32, "lr": 1e-3},
                 "pipeline": {"stages": STAGES, "schedule": "zb-v"}, "memory": {"slots": 4}}
        alone = {**shape, "pipeline": {"stages": 1}, "memory": {}}  # nothing to search, the same bits
        reference, _ = run_job(folder, write_job(folder, name="local.yaml", **alone), "--local")
        shape["services"] = {"stages": [service.address for service in services], "driver": address}
        job = write_job(folder, **shape)
        check_refused(folder, shape, address)
        check_stopped(folder, job, address, services)
        check_told(folder, job, address)
    with scratch() as folder, stages(folder, STAGES) as services:
        address = f"unix:{folder}/driver.sock"
        shape["services"] = {"stages": [service.address for service in services], "driver": address}
        check_killed(folder, write_job(folder, **shape), address, reference)


main()
