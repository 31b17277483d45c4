# SPDX-License-Identifier: Apache-2.0
"""A driver that is told to end before it has made a step of its own: once it has taken the stages over, it saves the steps
that its predecessor, which was killed, had committed and not saved; the run that goes on from there ends with the weights
and optimizer of an undisturbed one, bit for bit. Told to end before it has met all stages, it says that nothing was saved. A store that does
not answer keeps the driver from its first step meanwhile."""
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import time

from ballast import CTL, Proxy, Service, environment, run_job, scratch, stages, state_of, wait_until, write_job

STEPS = 600


def newest(folder):
    steps = [int(re.search(r"step-(\d+)$", path).group(1)) for path in glob.glob(os.path.join(folder, "step-??????"))]
    return max(steps, default=0)


def step_of(folder, driver):
    done = subprocess.run([CTL, "status", "--endpoint", driver.address, "-o", "json", "--timeout", "20"], text=True,
                          env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    return json.loads(done.stdout)["step"] if done.returncode == 0 else 0


def start(folder, job):
    return Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0")


def stop(driver):
    driver.process.send_signal(signal.SIGTERM)
    code = driver.process.wait(120)
    assert code == 130, f"exit code {code}: {driver.log()[-3000:]}"


def told_again(folder):
    """Told to end again and again while it ends, a service ends with the code that it said."""
    for program, more in (("stage-service", ()), ("activation-store", ("--capacity", "1 MiB"))):
        for _ in range(3):
            service = Service(folder, program, "--listen", "127.0.0.1:0", *more)
            while service.process.poll() is None:
                service.process.send_signal(signal.SIGTERM)
                time.sleep(0.001)
            assert service.process.returncode == 0, f"{program}: exit code {service.process.returncode}"
    print("ok services that are told to end again end with 0")


def main():
    with scratch() as folder:
        told_again(folder)
        train = {"steps": STEPS, "micro_batch": 1, "micro_batches": 4, "lr": 1e-3, "clip": 1.0}
        local, kept = os.path.join(folder, "local"), os.path.join(folder, "kept")
        run_job(folder, write_job(folder, "local.json", train=train, checkpoint={"folder": local, "every": STEPS}), "--local")
        store = Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "1 MiB")
        proxy = Proxy(store.address)
        with contextlib.ExitStack() as ends, stages(folder, 2) as services:
            ends.callback(store.kill)
            ends.callback(proxy.end)
            job = write_job(folder, train=train, checkpoint={"folder": kept, "every": STEPS},
                            services={"stages": [service.address for service in services],
                                      "stores": [proxy.address, store.address]})
            driver = start(folder, job)
            wait_until(lambda: step_of(folder, driver) >= 3, 60, f"no steps: {driver.log()[-3000:]}")
            committed = step_of(folder, driver)
            driver.kill(signal.SIGKILL)
            assert newest(kept) == 0 or committed == STEPS, "there was to be no checkpoint yet"
            proxy.open.clear()
            driver = start(folder, job)
            wait_until(lambda: "taking over with epoch" in driver.log(), 60, f"no takeover: {driver.log()[-3000:]}")
            stop(driver)
            proxy.open.set()
            saved = newest(kept)
            assert saved >= committed, f"step {saved} was saved, {committed} were committed: {driver.log()[-3000:]}"
            print(f"ok step {saved} was saved by a driver that had just taken over")

            nobody = write_job(folder, "nobody.json", train=train, checkpoint={"folder": kept, "every": STEPS},
                               services={"stages": [services[0].address, f"unix:{folder}/nobody"]})
            driver = start(folder, nobody)
            stop(driver)
            assert "no checkpoint was written; what stages hold stays there" in driver.log(), driver.log()[-3000:]
            print("ok a driver that had not met its stages says that nothing was saved")

            driver = start(folder, job)
            code = driver.process.wait(240)
            assert code == 0, f"exit code {code}: {driver.log()[-3000:]}"
        expected, got = state_of(local, STEPS), state_of(kept, STEPS)
        assert set(got) == set(expected), (sorted(got), sorted(expected))
        wrong = [name for name in expected if got[name] != expected[name]]
        assert not wrong, f"other bits than an undisturbed run: {wrong}"
        print(f"ok step {STEPS} has the bits of an undisturbed run")


main()
