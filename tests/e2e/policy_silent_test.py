# SPDX-License-Identifier: Apache-2.0
"""A store that answers the driver and then no stage: a change of the policy that needs it is refused with its name, and the
steps of the run do not wait meanwhile. Once it answers, the change is made; losses are those of an undisturbed run. Between
stores and everybody else is a proxy, which connects nobody any more when it is told so."""
import json
import os
import signal
import subprocess

from ballast import CTL, GOLDEN, Proxy, Service, environment, losses, read_report, run_job, scratch, small_inline, stages, \
    wait_until, write_job

STAGES = 4


def policy(folder, driver, *words):
    return subprocess.run([CTL, "policy", *words, "--endpoint", driver.address, "--timeout", "60"], text=True,
                          env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=120)


def in_force(folder, driver):
    return json.loads(policy(folder, driver, "get", "-o", "json").stdout)["policy"]


def lines_of(report):
    with open(report) as file:
        return file.read().count("\n")


def run(folder, services, driver, proxies, report):
    def steps(count):
        def made():
            assert driver.process.poll() is None, driver.log()[-3000:]
            return os.path.exists(report) and lines_of(report) >= count
        wait_until(made, 120, f"no {count} steps: {driver.log()[-3000:]}")

    steps(3)
    for proxy in proxies:
        proxy.open.clear()
    before = lines_of(report)
    done = policy(folder, driver, "set", "bpipe")
    made = lines_of(report) - before
    assert done.returncode == 4, f"exit code {done.returncode}: {done.stderr}"
    assert "stays in force, bpipe 3 was refused: " in done.stderr and "store of device" in done.stderr, done.stderr
    assert in_force(folder, driver) == "none"
    # A plan that was put off is asked for again after another step.
    put_off = sum(service.log().count("has not answered yet") for service in services)
    assert put_off > 0 and made > 0, f"{made} steps, put off {put_off} times: {services[0].log()[-3000:]}"
    print(f"ok {made} steps while stages asked their stores, put off {put_off} times")
    for proxy in proxies:
        proxy.open.set()
    wait_until(lambda: policy(folder, driver, "set", "bpipe").returncode == 0, 120, "bpipe is refused, and stores answer")
    assert in_force(folder, driver) == "bpipe"
    steps(lines_of(report) + 3)
    print("ok the policy was set once they answered")


def main():
    with scratch() as folder:
        stores, proxies, driver, watcher = [], [], None, None
        model = {"model": small_inline(hidden=32, layers=STAGES, seq=16), "data": {"train": f"{GOLDEN}/gpt2/tokens.bin"},
                 "train": {"steps": 1000000, "micro_batch": 1, "micro_batches": 8}, "pipeline": {"stages": STAGES}}
        report = os.path.join(folder, "report.jsonl")
        with stages(folder, STAGES) as services:
            try:
                for _ in range(STAGES):
                    stores.append(Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "16 MiB"))
                    proxies.append(Proxy(stores[-1].address))
                address = f"unix:{folder}/driver.sock"
                job = write_job(folder, **model, services={"stages": [service.address for service in services],
                                                           "stores": [proxy.address for proxy in proxies],
                                                           "driver": address})
                driver = Service(folder, "ballast-driver", "--job", job, "--listen", address)
                watcher = subprocess.Popen([CTL, "run", job, "--report", report], env=environment(folder),
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                run(folder, services, driver, proxies, report)
                driver.process.send_signal(signal.SIGTERM)
                assert driver.process.wait(120) == 130, driver.log()[-3000:]
                watcher.wait(120)
            finally:
                if watcher is not None and watcher.poll() is None:
                    watcher.kill()
                for proxy in proxies:
                    proxy.end()
                for service in (driver, *stores):
                    if service is not None and service.process.poll() is None:
                        service.kill(signal.SIGKILL)
        got = losses(read_report(report))
        alone = write_job(folder, "alone.json", **{**model, "pipeline": {"stages": 1}})
        expected = losses(run_job(folder, alone, "--local", "--steps", str(len(got)), timeout=600)[0])
        assert got == expected, "other losses"
        print(f"ok {len(got)} steps with the losses of an undisturbed run")


main()
