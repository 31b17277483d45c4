# SPDX-License-Identifier: Apache-2.0
"""Verifies the page that the driver serves of a balanced run, in headless Chromium: it needs nothing from anywhere else,
draws memory of every device (own, lent, in transit, cap), leases by state, the last step's timeline with evictions and
loads, and the loss from what the driver says. The JSON behind it is looked at without a browser. `ballastctl dashboard`
finds it."""
import html.parser
import http.server
import json
import os
import re
import shutil
import subprocess
import threading

import ballast
import prometheus
from ballast import CTL, Service, small_inline, wait_until, write_job
from leases_test import HOLDER, Holder

STAGES, STEPS, MICRO_BATCHES, SLOTS = 4, 6, 8, 3


def dashboard(driver, expect=0):
    done = subprocess.run([CTL, "dashboard", "--endpoint", driver.address, "-o", "name"], text=True,
                          capture_output=True, timeout=120)
    assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
    return done.stdout.strip()


def get(page, path):
    status, kind, text = prometheus.fetch(re.fullmatch(r"http://([^/]+)/", page)[1], path)
    assert status == 200, (path, status)
    return json.loads(text) if kind == "application/json" else text


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def having(self, name):
        return [attributes for _, attributes in self.elements if name in attributes]


def browse(chromium, folder, page):
    """The document after a few seconds of its own time."""
    done = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           f"--user-data-dir={folder}/browser", "--virtual-time-budget=6000", "--window-size=1280,1200",
                           "--dump-dom", page], text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return Elements(done.stdout)


def is_self_contained(text):
    """Nothing is fetched from elsewhere: the only addresses are relative, data and the name of a namespace."""
    found = set(re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"'\s)>]+)", text))
    assert all(re.match(r"(/|data:)", address) for address in found), found
    assert set(re.findall(r"https?://[^\"'\s]+", text)) <= {"http://www.w3.org/2000/svg"}


def check_document(document, run, timeline):
    body = next(attributes for tag, attributes in document.elements if tag == "body")
    assert int(body["data-rounds"]) >= 1, body
    assert int(body["data-timeline"]) == STEPS, body
    devices = document.having("data-device")
    assert [d["data-device"] for d in devices] == [str(d) for d in range(STAGES)]
    for device, history in zip(devices, run["history"]["devices"]):
        assert int(device["data-own"]) == history["own"][-1] > 0
        assert int(device["data-lent"]) == history["lent"][-1]
        assert int(device["data-peak"]) == history["peak"][-1] > 0
        assert int(device["data-cap"]) == SLOTS
    assert int(devices[-1]["data-lent"]) > 0, "the acceptor lends nothing"
    stores = document.having("data-store")
    assert [(s["data-store"], s["data-in-flight"]) for s in stores] == [(str(d), "0") for d in range(STAGES)], stores
    states = {(e["data-state"], e["data-count"]) for e in document.having("data-state")}
    assert states == {("sealed", "1"), ("reserved", "2")}, states
    drawn = document.having("data-op-type")
    assert len(drawn) == sum(len(stage) for stage in timeline["stages"])
    assert {e["data-op-type"] for e in drawn} >= {"F", "B", "E", "L"}
    for op_type in "EL":
        names = [name for stage in timeline["stages"] for name, wait, *_ in stage if not wait and op_type in name]
        assert sum(e["data-op-type"] == op_type for e in drawn) == len(names) > 0, (op_type, names)
    for text in ("page test", "finished", f"{STEPS} / {STEPS}", "bpipe", "evict", "load", "lent, in use", "in transit",
                 f"{run['history']['loss'][-1]:.4f}", "Memory per device"):
        assert text in document.text, f"'{text}' is not on the page"


def check_json(page):
    run = get(page, "/api/run")
    assert run["phase"] == "finished" and run["step"] == run["steps"] == STEPS
    devices = run["history"]["devices"]
    assert run["history"]["step"] == list(range(1, STEPS + 1)) and len(devices) == STAGES
    assert all(len(values) == STEPS for device in devices for values in device.values())
    for device in devices:
        assert all(0 < peak <= own for peak, own in zip(device["peak"], device["own"])), device
        assert all(leased <= lent for leased, lent in zip(device["leased"], device["lent"])), device
        assert all(own + lent <= SLOTS for own, lent in zip(device["own"], device["lent"])), device
    assert min(devices[-1]["lent"]) > 0 < min(devices[-1]["leased"]), "the acceptor lends nothing"
    policy = run["policy"]
    assert policy["name"].startswith("bpipe") and policy["budget"] == SLOTS, policy
    assert run["step_tokens"] == 2 * MICRO_BATCHES * 64
    timeline = wait_until(lambda: (lambda t: t if t["step"] == STEPS else None)(get(page, "/api/timeline")), 60,
                          f"no timeline of step {STEPS}")
    for stage, device in zip(timeline["stages"], devices):
        operations = [name for name, wait, *_ in stage if not wait]
        op_types = "".join(operations)
        assert op_types.count("E") == op_types.count("L") == device["evicted"][-1], operations
        computed = [name for name in operations if "E" not in name and "L" not in name]
        assert sorted(computed) == sorted(f"{computed[0][0]}{op_type}{i}" for op_type in "FB" for i in range(MICRO_BATCHES))
        assert all(0 <= begin <= end for _, _, begin, end, _ in stage)
    assert devices[0]["evicted"][-1] > 0
    def answered():
        stores = get(page, "/api/stores")
        return stores if all(store.get("reachable") and not store["in_flight_bytes"] for store in stores) else None

    stores = wait_until(answered, 60, "the stores do not answer the driver")
    assert stores[0]["leases"]["sealed"] == 1 and stores[0]["leases"]["reserved"] == 2, stores
    return run, timeline


class Told(http.server.BaseHTTPRequestHandler):
    """The page with answers that are given to it: what a run shows for an instant only."""

    def do_GET(self):
        text = self.server.answers.get(self.path)
        body = (text if isinstance(text, str) else json.dumps(text)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path == "/" else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def check_in_transit(chromium, folder, page, run, timeline):
    """Two blocks on their way at the acceptor's store: drawn there, in slots, and nowhere else."""
    stores = get(page, "/api/stores")
    stores[-1]["in_flight_bytes"] = 2 * run["stages"][-1]["slot_bytes"]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told) as server:
        server.answers = {"/": get(page, "/"), "/api/run": run, "/api/stores": stores, "/api/timeline": timeline}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        document = browse(chromium, folder, f"http://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()
    assert [float(d["data-transit"]) for d in document.having("data-device")] == [0, 0, 0, 2]
    assert len(document.having("points")) == 1 + 2, "one device has a line of blocks in transit; loss and seconds are lines"
    assert document.having("data-store")[-1]["data-in-flight"] == str(stores[-1]["in_flight_bytes"])


def check_metrics(page, run):
    """The fullest and the emptiest device are those of the page: a device keeps what it lends, too."""
    metrics = prometheus.scrape(re.fullmatch(r"http://([^/]+)/", page)[1])
    slots = [device["own"][-1] + device["lent"][-1] for device in run["history"]["devices"]]
    found = [metrics.get("ballast_run_device_slots", device=which) for which in ("fullest", "emptiest")]
    assert found == [max(slots), min(slots)] and found[0] <= 2 * found[1], (found, slots)


def main():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with ballast.scratch() as folder:
        services = []
        try:
            stores = [Service(folder, "activation-store", "--listen", f"unix:{folder}/store{i}", "--capacity", "64 MiB")
                      for i in range(STAGES)]
            services += stores
            stages = [Service(folder, "stage-service", "--listen", f"unix:{folder}/stage{i}") for i in range(STAGES)]
            services += stages
            job = write_job(folder, name="page.yaml", services={"stages": [s.address for s in stages],
                                                                "stores": [s.address for s in stores]},
                            model=small_inline(), train={"steps": STEPS, "micro_batches": MICRO_BATCHES},
                            pipeline={"stages": STAGES}, memory={"slots": SLOTS}, balance={"policy": "bpipe"})
            with open(job) as file:
                text = json.load(file)
            with open(job, "w") as file:
                json.dump({"name": "page test", **text}, file)
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", f"unix:{folder}/driver", "--linger",
                             "--metrics-listen", "127.0.0.1:0")
            services.append(driver)
            page = dashboard(driver)
            wait_until(lambda: get(page, "/api/run")["phase"] == "finished", 120, "the run has not finished")
            holder = Holder(stores[0], "page", 0, 3)
            holder.tell("evict 1")
            run, timeline = check_json(page)
            check_metrics(page, run)
            is_self_contained(get(page, "/"))
            if chromium is not None:
                check_document(browse(chromium, folder, page), run, timeline)
                check_in_transit(chromium, folder, page, run, timeline)
            holder.end()
            driver.end()
            dashboard(driver, expect=5)
        finally:
            for service in reversed(services):
                service.end()
    if chromium is None:
        ballast.skip("no chromium (Debian package chromium): the JSON was looked at, the page itself was not")


if __name__ == "__main__":
    if not os.path.exists(HOLDER):
        ballast.skip(f"{HOLDER} is not built")
    main()
