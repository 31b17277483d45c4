# SPDX-License-Identifier: Apache-2.0
"""A job on stages and stores that were started by themselves: the bits of a local run, over shared memory and tcp; slots
are free once the run is over; a run whose driver and ballastctl were killed leaves stages behind that let their slots go;
a job that moves blocks and names no stores, and one whose store cannot be reached, are refused with the reason."""
import contextlib
import json
import os
import signal
import subprocess
import time

from ballast import (CTL, GOLDEN, Service, environment, losses, on, run_job, scratch, small_inline, stages, wait_until,
                     write_job)

STAGES = 4


@contextlib.contextmanager
def stores(folder, count):
    services = []
    try:
        for _ in range(count):
            services.append(Service(folder, "activation-store", "--listen", "127.0.0.1:0", "--capacity", "64 MiB"))
        yield services
    finally:
        for service in services:
            service.kill(signal.SIGKILL)


def leases(folder, store):
    done = subprocess.run([CTL, "leases", "list", "--store", store.address, "-o", "json"], env=environment(folder),
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "[]")


def main():
    with scratch() as folder, stores(folder, STAGES) as lenders:
        job = write_job(folder, model=small_inline(hidden=32, layers=STAGES, seq=16),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 3, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": STAGES},
                        memory={"slots": 3}, balance={"policy": "bpipe"})
        expected = losses(run_job(folder, job, "--local", "--set", "balance.policy=none", "--set", "memory.slots=4")[0])
        addresses = [store.address for store in lenders]
        prefixes = [((), "127.0.0.1:0", "--rest", "1")] * STAGES
        with stages(folder, STAGES, prefixes=prefixes) as services:
            for path in ("auto", "tcp"):
                report, _ = run_job(folder, job, *on(services, addresses), "--set", f"balance.data_path={path}")
                assert losses(report) == expected, f"{path}: other losses"
                assert [store["pid"] for store in report[-1]["stores"]] == [store.pid for store in lenders]
                assert report[-1]["stages"][0]["loaded"] == 8, report[-1]
                assert leases(folder, lenders[3]) == [], "slots are held after the run"
                print(f"ok {path}")

            long = os.path.join(folder, "long.jsonl")
            process = subprocess.Popen([CTL, "run", job, *on(services, addresses), "--steps", "1000000", "--report", long],
                                       env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            wait_until(lambda: os.path.exists(long) and os.path.getsize(long) > 0, 60, "no step")
            wait_until(lambda: leases(folder, lenders[3]), 60, "no slots while it runs")
            process.send_signal(signal.SIGSTOP)  # its driver waits for it with the next commit, and calls for status alone
            time.sleep(3)  # longer than --rest
            assert leases(folder, lenders[3]), "stages whose driver waits let their slots go"
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            wait_until(lambda: not leases(folder, lenders[3]), 60, "stages without a driver keep their slots")
            print("ok without a driver")

        with stages(folder, STAGES) as services:
            for arguments in ((), ("--check",)):
                _, done = run_job(folder, job, *on(services), *arguments, expect=2)
                assert "services.stores: is missing; balance.policy bpipe parks blocks" in done.stderr, done.stderr
            run_job(folder, job, *on(services), "--local", "--check")  # a local run starts stores
            gone = addresses[:3] + [f"unix:{folder}/nobody"]
            _, done = run_job(folder, job, *on(services, gone), expect=5)
            assert "store of device 3" in done.stderr and "nobody" in done.stderr, done.stderr
            print("ok refusals")


if __name__ == "__main__":
    main()
