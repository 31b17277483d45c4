# SPDX-License-Identifier: Apache-2.0
"""What a user sees of a host store: stores, leases, watch, drain, quota, health and policy tell it from those of devices,
and doctor names a stage's wait there with the lease that `leases get` takes. The page has a chart of it, metrics count it
apart, pictures of steps show which blocks went there."""
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import prometheus
from ballast import CTL, Run, Service, environment, run_job, scratch, small_inline, stages, wait_until, write_job
from page_test import Told, browse, get

OF = ["device 0", "device 1", "device 2", "device 3", "host 0"]


def ctl(folder, *words, form="json", expect=(0,)):
    done = subprocess.run([CTL, *words, "-o", form], env=environment(folder), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode in expect, (words, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if form == "json" else done.stdout


def stores_are_told_apart(folder):
    rows = ctl(folder, "stores")
    assert [(row["store"], row["of"]) for row in rows] == list(enumerate(OF)), rows
    assert all(row["state"] == "serving" for row in rows), rows
    assert rows[4]["capacity_bytes"] == 64 << 20 and rows[4]["held_bytes"] > 0, rows[4]
    table = ctl(folder, "stores", form="table").splitlines()
    assert table[0].split()[:3] == ["STORE", "OF", "STATE"], table
    assert table[-1].split()[:3] == ["4", "host", "0"], table
    one = ctl(folder, "stores", "--store", rows[4]["address"], form="table")
    assert " OF " not in one, one  # of a store that is named by hand nothing is known
    leases = wait_until(lambda: [row for row in ctl(folder, "leases", "list") if row["store"] == 4], 60,
                        "no lease at the host")
    assert all(lease["of"] == "host 0" and lease["lease"].startswith("4/") for lease in leases), leases
    assert {lease["stage"] for lease in leases} <= {0, 1}, leases
    events = subprocess.run([CTL, "leases", "watch", "--events", "20", "-o", "ndjson"], env=environment(folder), text=True,
                            stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert events.returncode == 0, events.stderr
    seen = [json.loads(line) for line in events.stdout.splitlines()]
    assert {(event["store"], event["of"]) for event in seen} == {(4, "host 0")}, seen
    state = ctl(folder, "drain", "4")
    assert (state["store"], state["of"], state["state"]) == (4, "host 0", "draining"), state
    wait_until(lambda: {row["service"]: row["state"] for row in ctl(folder, "health")}["host-store-0"] == "draining", 30,
               "health does not say that the host store drains")
    assert ctl(folder, "drain", "4", "--undrain")["state"] == "serving"
    quota = ctl(folder, "quota", "nobody", "1MiB")
    assert [row["of"] for row in quota] == OF, quota
    run = ctl(folder, "status")
    assert [(store["of"], store["of_host"]) for store in run["stores"]] == [(of, of == "host 0") for of in OF], run
    print("ok stores, leases, watch, drain, health, quota, status")
    return run


def through_the_driver(folder, run):
    """Where the folder of a run is not at hand, the driver tells whose each store is."""
    driver = run["stores"][0]["address"].replace("store-0", "driver")
    rows = ctl(folder, "stores", "--endpoint", driver)
    assert [row["of"] for row in rows] == OF, rows
    print("ok stores of a driver")


def policies_show_the_host(folder):
    now = ctl(folder, "policy", "get")
    assert now["hosts"] == [{"host": 0, "lent_slots": 5}], now
    assert [device["lent_slots"] for device in now["devices"]] == [0, 0, 0, 0], now
    other = ctl(folder, "policy", "set", "offload", "1", "--mode", "fewest", "--dry-run")
    assert other["hosts"] == [{"host": 0, "lent_slots": 9}], other
    pairs = ctl(folder, "policy", "set", "bpipe", "2", "--mode", "fewest", "--dry-run")
    assert pairs["hosts"][0]["lent_slots"] + sum(device["lent_slots"] for device in pairs["devices"]) == 5, pairs
    assert pairs["devices"][3]["lent_slots"] == 1, pairs
    wide = ctl(folder, "policy", "get", form="wide")
    assert "HOST SLOTS" in wide, wide
    print("ok policy get, policy set --dry-run")


def page_and_metrics(folder):
    page = ctl(folder, "dashboard", form="name").strip()
    run = get(page, "/api/run")
    assert [host["host"] for host in run["hosts"]] == [0] and run["hosts"][0]["lent"] == 5, run["hosts"]
    assert run["hosts"][0]["slot_bytes"] % 65536 == 0 < run["hosts"][0]["slot_bytes"], run["hosts"]
    hosts, devices = run["history"]["hosts"], run["history"]["devices"]
    assert len(hosts) == 1 and set(hosts[0]["lent"]) == {5}, hosts
    assert all(0 < leased <= 5 for leased in hosts[0]["leased"]), hosts
    assert all(set(device["lent"]) == set(device["leased"]) == {0} for device in devices), devices
    stores = wait_until(lambda: (lambda s: s if all("reachable" in store for store in s) else None)(
        get(page, "/api/stores")), 60, "the stores do not answer the driver")
    assert [store.get("host") for store in stores] == [None, None, None, None, 0], stores
    timeline = wait_until(lambda: (lambda t: t if t["step"] else None)(get(page, "/api/timeline")), 60, "no timeline")
    parked = [name for stage in timeline["stages"] for name, wait, *_ in stage if not wait and "@" in name]
    assert timeline["pipeline"] == 4 and parked and all(name.endswith("@4") for name in parked), parked
    metrics = prometheus.scrape(re.fullmatch(r"http://([^/]+)/", page)[1])
    assert metrics.get("ballast_stores") == 5, metrics.get("ballast_stores")
    assert [metrics.get("ballast_run_lent_slots", of=of) for of in ("device", "host")] == [0, 5]
    assert 0 < metrics.get("ballast_run_leased_slots", of="host") <= 5
    assert metrics.get("ballast_run_leased_slots", of="device") == 0
    print("ok page and metrics")
    return run, stores, timeline, get(page, "/")


def check_drawn(folder, told):
    """What a browser makes of it: a chart of the host beside those of devices."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("-- no chromium (Debian package chromium): the page itself was not looked at")
        return
    run, stores, timeline, text = told
    stores[4]["in_flight_bytes"] = run["hosts"][0]["slot_bytes"]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        server.answers = {"/": text, "/api/run": run, "/api/stores": stores, "/api/timeline": timeline}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        document = browse(chromium, folder, f"http://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()
    host, = document.having("data-host")
    assert (host["data-lent"], host["data-transit"]) == ("5", "1"), host
    assert host["data-leased"] == str(run["history"]["hosts"][0]["leased"][-1]), host
    assert len(document.having("data-device")) == 4
    assert "host 0" in document.text and "leased of 5 lent" in document.text and "to the host" in document.text
    print("ok the page in a browser")


def picture(folder, job):
    """Evictions to the host have a colour of their own in pictures, and a line in the legend."""
    drawn = []
    for words in (("--set", "balance.policy=offload", "--set", "memory.slots=2"),
                  ("--set", "balance.policy=bpipe", "--set", "memory.slots=3")):
        path = os.path.join(folder, f"step-{len(drawn)}.svg")
        run_job(folder, job, "--local", "--steps", "2", *words, "--timeline", path)
        with open(path) as file:
            drawn.append(file.read().replace(" ", ""))
        path = path.replace("step", "simulated")
        done = subprocess.run([CTL, "simulate", job, *words, "--svg", path], text=True, capture_output=True, timeout=120,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        with open(path) as file:
            drawn.append(file.read().replace(" ", ""))
    host, peer = "rgb(41.960784%,18.431373%,54.117647%)", "rgb(70.980392%,28.627451%,41.960784%)"  # 0x6b2f8a, 0xb5496b
    assert [(host in text, peer in text) for text in drawn] == [(True, False)] * 2 + [(False, True)] * 2
    print("ok pictures")


def doctor_names_the_wait(folder, run, host):
    """A stage's wait while the host store stands still; then that the store is silent."""
    def waits():
        return [row for row in ctl(folder, "doctor", expect=(0, 9)) if row.get("store") == 4 and row.get("lease")]
    found = []
    while not found:
        seen = len(run.steps())
        os.kill(host, signal.SIGSTOP)
        try:
            until = time.monotonic() + 10
            while not found and time.monotonic() < until and len(run.steps()) <= seen + 1:
                found = [row for row in waits() if row["seconds"] > 0.2]
        finally:
            os.kill(host, signal.SIGCONT)
        run.wait_for(lambda steps: len(steps) > seen + 2, "no step after the store went on")
    wait = found[0]
    assert wait["waits_for"] in ("eviction to host store 0", "load from host store 0"), wait
    assert wait["who"] in ("stage 0", "stage 1") and wait["lease"].startswith("4/"), wait
    ctl(folder, "leases", "get", wait["lease"], expect=(0, 3))  # 3: it has ended by now
    print(f"ok {wait['who']}: {wait['waits_for']}, lease {wait['lease']}")


def two_hosts_alone(folder):
    """Services that run already: two stores of hosts, none of devices, numbered from 0; a run that has just these."""
    lenders = [Service(folder, "activation-store", "--listen", f"unix:{folder}/lender-{i}", "--capacity", "64 MiB",
                       "--drain", "0") for i in range(2)]
    try:
        with stages(folder, 4, prefixes=[((), f"unix:{folder}/named-{i}") for i in range(4)]) as services:
            job = write_job(folder, name="named.yaml", model=small_inline(), data={"train": [__file__], "format": "text"},
                            train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4},
                            memory={"slots": 1}, balance={"policy": "offload", "mode": "fewest", "host": "64MiB"},
                            services={"stages": [one.address for one in services],
                                      "host_stores": [one.address for one in lenders]})
            run = Run(folder, job)
            try:
                steps = run.wait_for(lambda s: s and s[-1]["stages"][0]["loaded"] > 0, "nothing is parked")
                lent = [(store["store"], store["host"], store["lent_slots"]) for store in steps[-1]["stores"]]
                assert lent == [(0, 0, 7), (1, 1, 2)], lent  # 4 and 3 of stages 0 and 1, 2 of stage 2
                rows = ctl(folder, "stores")
                assert [(row["store"], row["of"], row["address"]) for row in rows] == \
                    [(i, f"host {i}", one.address) for i, one in enumerate(lenders)], rows
                assert {row["service"] for row in ctl(folder, "health")} >= {"host-store-0", "host-store-1"}
                assert [host["lent_slots"] for host in ctl(folder, "policy", "get")["hosts"]] == [7, 2]
                page = get(ctl(folder, "dashboard", form="name").strip(), "/api/run")
                assert [host["lent"] for host in page["hosts"]] == [7, 2], page["hosts"]
                assert [host["lent"][-1] for host in page["history"]["hosts"]] == [7, 2], page["history"]
                assert all(set(device["lent"]) == {0} for device in page["history"]["devices"]), page["history"]
                leases = [(lease["store"], lease["stage"]) for lease in ctl(folder, "leases", "list")]
                assert {stage for store, stage in leases if store == 0} == {0, 1}, leases
                assert {stage for store, stage in leases if store == 1} == {2}, leases
                os.kill(lenders[1].pid, signal.SIGKILL)
                rows = wait_until(lambda: [row for row in ctl(folder, "doctor", expect=(0, 9))
                                           if row["state"] == "does not answer"], 60, "doctor does not see that it is gone")
                assert [row["who"] for row in rows] == ["host store 1"], rows
            finally:
                run.end(130, signal.SIGINT)
    finally:
        for one in lenders:
            one.kill(signal.SIGKILL)
    print("ok two stores of hosts and none of devices")


def main():
    with scratch() as folder:
        job = write_job(folder, model=small_inline(), data={"train": [__file__], "format": "text"},
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 16}, pipeline={"stages": 4},
                        memory={"slots": 2}, balance={"policy": "offload", "mode": "fewest", "host": "64MiB"})
        run = Run(folder, job, "--local", "--set", "balance.rate=2000000")
        try:
            steps = run.wait_for(lambda s: s and s[-1]["stages"][0]["loaded"] > 0, "nothing is parked")
            status = stores_are_told_apart(folder)
            through_the_driver(folder, status)
            policies_show_the_host(folder)
            told = page_and_metrics(folder)
            doctor_names_the_wait(folder, run, steps[-1]["stores"][4]["pid"])
        finally:
            run.end(130, signal.SIGINT)
        check_drawn(folder, told)
        two_hosts_alone(folder)
        picture(folder, job)


if __name__ == "__main__":
    main()
