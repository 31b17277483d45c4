# SPDX-License-Identifier: Apache-2.0
"""A driver that comes back finds its own run's slots at stores that lend not a granule more than the plan takes, as
ballastctl render makes them: preflight, which runs before it, passes while the run goes on and after the driver was killed.
The same room is not free for a run of another name. What the run has chosen is in its status."""
import json
import signal
import subprocess

from ballast import CTL, Service, environment, scratch, small_inline, stages, wait_until, write_job

STAGES = 4


def ask(folder, command, *arguments):
    done = subprocess.run([CTL, command, *arguments, "-o", "json"], env=environment(folder), text=True, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=240)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def step_of(folder, address):
    code, said = ask(folder, "status", "--endpoint", address)
    return said["step"] if code == 0 else 0


def paths_of(folder, address):
    """Per stage, the peers that it has a path to."""
    code, rows = ask(folder, "stages", "--endpoint", address)
    if code != 0:
        return [{}]
    paths = [path for row in rows for path in row.get("paths", [])]
    assert all(path["path"] == "shm" and path["reason"] for path in paths), paths
    return [{path["stage"] for path in row.get("paths", [])} for row in rows]


def check(folder, job, when):
    code, rows = ask(folder, "preflight", job, "--timeout", "60")
    assert code == 0, (when, code, [row for row in rows if row["state"] == "failed"])
    room = next(row["says"] for row in rows if (row["check"], row["subject"]) == ("room", "store 3"))
    assert room == "the plan takes 128 KiB, 128 KiB are free", room
    path = next(row for row in rows if row["subject"] == "stage 0 to store 3")
    assert path["state"] == "not asked" and "full" in path["says"], path
    print(f"ok {when}")


def main():
    # Nothing is given up while this test looks.
    with scratch() as folder, stages(folder, STAGES, prefixes=[((), "127.0.0.1:0", "--rest", "3600")] * STAGES) as services:
        capacities = ["64 KiB"] * (STAGES - 1) + ["128 KiB"]
        stores = [Service(folder, "activation-store", "--listen", f"unix:{folder}/store-{i}", "--capacity", capacity, "--drain",
                          "0") for i, capacity in enumerate(capacities)]
        driver = None
        try:
            address = f"unix:{folder}/driver.sock"
            job = write_job(folder, name="job.yaml", model=small_inline(hidden=32, layers=STAGES, seq=16),
                            train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": STAGES},
                            memory={"slots": 3}, balance={"policy": "bpipe"},
                            services={"driver": address, "stages": [s.address for s in services],
                                      "stores": [s.address for s in stores]})
            code, rows = ask(folder, "preflight", job, "--timeout", "60")
            assert code == 0 and all(row["state"] == "ok" for row in rows if row["check"] == "path"), rows
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", address)
            wait_until(lambda: step_of(folder, address) >= 2, 120, "the run does not begin")
            check(folder, job, "beside the run")
            wait_until(lambda: all(1 in paths or 2 in paths for paths in paths_of(folder, address)), 120,
                       f"no paths in {ask(folder, 'stages', '--endpoint', address)}")
            print("ok the run says which paths it has chosen, and why")
            driver.kill(signal.SIGKILL)
            check(folder, job, "after the driver was killed")
            code, rows = ask(folder, "preflight", job, "--timeout", "60", "--set", "name=other")
            failed = [(row["check"], row["subject"]) for row in rows if row["state"] == "failed"]
            assert code == 9 and failed == [("room", "store 3")], (code, rows)
            print("ok another run has no room there")
        finally:
            if driver is not None:
                driver.end()
            for store in stores:
                store.kill(signal.SIGKILL)


if __name__ == "__main__":
    main()
