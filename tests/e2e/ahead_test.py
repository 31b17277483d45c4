# SPDX-License-Identifier: Apache-2.0
"""train.post_validation: stages apply a step and begin the next one before it is committed. Losses and norms are those of
a run that waits, bit by bit: for schedules with fused and split backwards, with several chunks a stage, with evictions,
where gradients are clipped now and then (the step is taken back), over a checkpoint and its resume, and with drivers that
are killed, and on replicas in bf16. The metrics say that steps were applied ahead, and the second copy of the weights is planned memory."""
import os
import re
import signal
import subprocess
import time

import prometheus
from ballast import (CTL, LONG, Service, environment, losses, read_report, run_job, scratch, seed, small_inline, wait_until,
                     write_job)

AHEAD = ("--set", "train.post_validation=true")
MODEL = {**small_inline(hidden=32, layers=6, seq=16, vocab=256), "tied": False}


def counted(services, name, **labels):
    addresses = [re.search(r"metrics on http://([^/]+)/metrics", service.log())[1] for service in services]
    return [int(prometheus.scrape(address).get(name, **labels)) for address in addresses]


def steps_ahead(services):
    return counted(services, "ballast_steps_ahead_total")


def check_schedules(folder, train):
    reference = None
    others = [(3, "zb-h1", {}), (3, "zb-h2", {})] if LONG else []  # zb-h1 has its drivers killed below
    for stages, schedule, more in ((1, "1f1b", {}), (3, "1f1b", {}), *others, (3, "zb-v", {}), (2, "interleaved", {}),
                                   (3, "1f1b", {"model": {**MODEL, "tied": True}}),
                                   (4, "1f1b", {"memory": {"slots": 3}, "balance": {"policy": "bpipe"}})):
        job = write_job(folder, **{"model": MODEL, "train": train, **more},
                        pipeline={"stages": stages, "schedule": schedule})
        if reference is None or more:
            waits = losses(run_job(folder, job, "--local")[0])
            reference = reference or waits
        expected = waits if more else reference
        goes_on, _ = run_job(folder, job, "--local", *AHEAD)
        assert losses(goes_on) == expected, f"{schedule} on {stages}, {more}"
        print(f"ok {schedule} on {stages} stages{', ' + ', '.join(more) if more else ''}")


def check_clipping(alone, folder, services, train, _):
    clip_now_and_then(alone, folder, services, {**train, "lr": 0.02}, {"pipeline": {"stages": len(services)}})


def check_masters(alone, folder, services, train, _):
    """Two replicas in bf16 take back masters of which each has a part, and gather the rest again."""
    clip_now_and_then(alone, folder, services, {**train, "lr": 0.2, "dtype": "bf16"},
                      {"pipeline": {"stages": len(services) // 2}, "parallel": {"data": 2}})


def clip_now_and_then(alone, folder, services, train, shape):
    """A limit between a norm and a larger one that follows it: the offer that the first one allows cannot be kept."""
    job = write_job(alone, model=MODEL, train={**train, "clip": 0}, **shape)
    report, _ = run_job(alone, job, "--local")
    norms = [event["grad_norm"] for event in report if event["event"] == "step"]
    jumps = [i for i in range(1, len(norms)) if norms[i] > 1.3 * norms[i - 1]]
    assert jumps, f"no norm is much above the one before it: {norms}"
    clip = norms[jumps[0]] / 1.1
    job = write_job(folder, model=MODEL, train={**train, "clip": clip}, **shape,
                    services={"stages": [service.address for service in services]})
    waits, _ = run_job(folder, job)
    clipped = [event["grad_norm"] > clip for event in waits if event["event"] == "step"]
    goes_on, _ = run_job(folder, job, *AHEAD)
    assert losses(goes_on) == losses(waits), "clipping"
    back = [service.log().count("applied ahead of its commit, was taken back") for service in services]
    assert any(back) and any(clipped) and not all(clipped), (back, clipped)
    assert not any(counted(services, "ballast_attempts_total", outcome="failed")), "what is taken back has not failed"
    aborted = counted(services, "ballast_attempts_total", outcome="aborted")
    assert all(number >= times for number, times in zip(aborted, back)), (aborted, back)
    print(f"ok clipping in {sum(clipped)} of {len(clipped)} steps, taken back {back} times")


def check_not_finite(folder, train):
    job = write_job(folder, model=MODEL, train={**train, "lr": 1e30}, pipeline={"stages": 3})
    for arguments in ((), AHEAD):
        _, done = run_job(folder, job, "--local", *arguments, expect=4)
        assert "not finite" in done.stderr, done.stderr[-2000:]
    print("ok gradients that are not finite")


def check_resume(folder, train):
    train = {**train, "steps": 9}
    reference, _ = run_job(folder, write_job(folder, model=MODEL, train=train, pipeline={"stages": 3}), "--local")
    job = write_job(folder, model=MODEL, train=train, pipeline={"stages": 3},
                    checkpoint={"folder": os.path.join(folder, "saved"), "every": 4})
    first, _ = run_job(folder, job, "--local", "--steps", "6", *AHEAD)
    second, _ = run_job(folder, job, "--local", "--resume", *AHEAD)
    seen = {event["step"]: event["loss"].hex() for event in first + second if event["event"] == "step"}
    assert [seen[step + 1] for step in range(9)] == [loss for loss, _ in losses(reference)], seen
    print("ok checkpoint and resume")


def check_drivers(alone, folder, services, train, choice):
    kills = int(os.environ.get("BALLAST_TEST_KILLS", "4" if LONG else "2"))
    train = {**train, "steps": 150 + 60 * kills}
    pipeline = {"stages": len(services), "schedule": "zb-h1"}
    reference, _ = run_job(alone, write_job(alone, model=MODEL, train=train, pipeline=pipeline), "--local")
    address = f"unix:{folder}/driver.sock"
    job = write_job(folder, model=MODEL, train={**train, "post_validation": True}, pipeline=pipeline,
                    services={"stages": [service.address for service in services], "driver": address})
    report = os.path.join(folder, "interrupted.jsonl")

    def start_driver():
        return Service(folder, "ballast-driver", "--job", job, "--listen", address, "--linger")

    before = steps_ahead(services)
    driver = start_driver()
    errors = open(os.path.join(folder, "stderr.txt"), "w+")
    control = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        wait_until(lambda: os.path.exists(report) and os.path.getsize(report) > 0, 60, "no step was recorded")
        for _ in range(kills):
            time.sleep(choice.uniform(0.0, 0.3))
            driver.kill(signal.SIGKILL)
            driver = start_driver()
        code = control.wait(120)
        errors.seek(0)
        assert code == 0, f"exit code {code}\n{errors.read()[-4000:]}\n{driver.log()[-4000:]}"
    except AssertionError:
        print(*[service.log()[-3000:] for service in (driver, *services)], sep="\n")
        raise
    finally:
        if control.poll() is None:
            control.kill()
        driver.end()
    assert losses(read_report(report)) == losses(reference), "drivers that were killed"
    ahead = [now - then for now, then in zip(steps_ahead(services), before)]
    assert all(0 < count < train["steps"] for count in ahead), ahead
    print(f"ok {kills} drivers killed, {ahead} of {train['steps']} steps applied ahead")


def check_memory(services):
    for service in services:
        address = re.search(r"metrics on http://([^/]+)/metrics", service.log())[1]
        metrics = prometheus.scrape(address)
        if metrics.get("ballast_stage_rank") == -1:
            continue  # it was released
        shadow = metrics.get("ballast_memory_planned_bytes", tag="shadow")
        moments = metrics.get("ballast_memory_planned_bytes", tag="optimizer")
        assert shadow == metrics.get("ballast_memory_bytes", tag="shadow") and shadow >= 1.5 * moments, (shadow, moments)


def main():
    choice = seed()
    train = {"steps": 12, "micro_batch": 1, "micro_batches": 6, "lr": 1e-3, "clip": 0}
    metrics = ("--metrics-listen", "127.0.0.1:0")
    with scratch() as folder:
        check_schedules(folder, train)
        check_not_finite(folder, train)
        check_resume(folder, train)
    for check, count in ((check_clipping, 3), (check_masters, 4), (check_drivers, 3)):
        services = []
        with scratch() as alone, scratch() as folder:  # services live on in the second one
            try:
                for _ in range(count):
                    services.append(Service(folder, "stage-service", "--listen", "127.0.0.1:0", *metrics))
                check(alone, folder, services, train, choice)
                check_memory(services)
            finally:
                for service in services:
                    service.end()


main()
