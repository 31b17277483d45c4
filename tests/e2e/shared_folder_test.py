# SPDX-License-Identifier: Apache-2.0
"""A checkpoint.folder is one run's at a time: a second one is refused and told who holds it, and changes nothing; what a
killed run leaves stops nobody; and the successor of a driver that stands still, over the same stages, goes on."""
import json
import os
import signal
import subprocess

from ballast import (BIN, Run, Service, descendants, environment, program_of, run_job, scratch, stages, wait_until,
                     write_job)

TRAIN = {"steps": 20000, "micro_batch": 1, "micro_batches": 2, "lr": 1e-3}


def named_job(folder, name, **sections):
    path = write_job(folder, f"{name}.yaml", **sections)
    with open(path) as file:
        job = json.load(file)
    with open(path, "w") as file:
        json.dump(dict(job, name=name), file, indent=1)
    return path


def whole(place):
    return sorted(name for name in os.listdir(place) if name.startswith("step-") and "." not in name)


def test_local(folder):
    place = f"{folder}/one/place"
    first = named_job(folder, "first", train=TRAIN,
                      checkpoint={"folder": place, "every": 20, "keep": 3})
    second = named_job(folder, "second", train=TRAIN, checkpoint={"folder": place, "keep": 3})
    run = Run(folder, first, "--local")
    try:
        wait_until(lambda: run.process.poll() is not None or (os.path.isdir(place) and whole(place)), 120, "no checkpoint")
        driver, = [pid for pid in descendants(run.pid) if program_of(pid) == "ballast-driver"]
        for arguments in ([], ["--resume"]):
            _, done = run_job(folder, second, "--local", *arguments, expect=4)
            for words in ("second.yaml:", f"checkpoint.folder: {place}: run 'first' (process {driver} on host ",
                          "writes its checkpoints there; name another folder, or wait until that run has ended"):
                assert words in done.stderr, f"'{words}' is not in: {done.stderr}"
        assert not [name for name in os.listdir(place) if name.startswith("earlier-")], os.listdir(place)
        steps = len(run.steps())
        run.wait_for(lambda events: len(events) > steps, "the first run did not go on")
        os.kill(driver, signal.SIGKILL)
        run.end(expect=5)
    finally:
        run.kill()
    last = int(whole(place)[-1][5:])
    run_job(folder, second, "--local", "--resume", "--steps", str(last + 2))
    assert whole(place)[-1] == f"step-{last + 2:06}" and not [n for n in os.listdir(place) if n.startswith(".")], \
        os.listdir(place)
    print("ok a second run is refused while the first lives, and goes on when its driver was killed")


def drive(folder, job):
    return subprocess.run([os.path.join(BIN, "ballast-driver"), "--job", job, "--listen", "127.0.0.1:0"],
                          env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def test_services(folder):
    """The folder is not there yet, and stands there still after `kill -9`."""
    place = f"{folder}/two"
    train = dict(TRAIN, steps=40)
    with stages(folder, 2) as services, stages(folder, 2) as others:
        def job(name, over):
            return named_job(folder, name, train=train, checkpoint={"folder": place},
                             services={"stages": [service.address for service in over]})

        first, second = job("first", services), job("second", others)
        holder = Service(folder, "ballast-driver", "--job", first, "--listen", "127.0.0.1:0", "--linger")
        try:
            wait_until(lambda: all("following driver" in service.log() for service in services), 120, "no takeover")
            holder.process.send_signal(signal.SIGSTOP)
            done = drive(folder, second)
            assert done.returncode == 4 and f"{place}: run 'first' (process {holder.pid} on host " in done.stderr, done
            done = drive(folder, first)
            assert done.returncode == 0 and "an older driver over the same stages" in done.stderr, done
            assert whole(place) == ["step-000040"], os.listdir(place)
        finally:
            holder.kill()
        assert os.listdir(place) != whole(place), "a killed driver leaves its lock file"
        done = drive(folder, second)
        assert done.returncode == 0, done
        assert sorted(os.listdir(place)) == ["earlier-1", "step-000040"], os.listdir(place)
    print("ok drivers: another run is refused, the same run's successor is not, a killed one stops nobody")


def main():
    with scratch() as folder:
        test_local(folder)
        test_services(folder)


main()
