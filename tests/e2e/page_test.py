# SPDX-License-Identifier: Apache-2.0
"""Verifies the page that the driver serves, in headless Chromium: it needs nothing from anywhere else, draws memory of
every device, leases by state, the last step's timeline and the loss from what the driver says, and says so when the
driver has gone. The JSON behind it is looked at without a browser. `ballastctl dashboard` finds it."""
import html.parser
import json
import os
import re
import shutil
import subprocess

import ballast
import prometheus
from ballast import CTL, Service, small_inline, wait_until, write_job
from leases_test import HOLDER, Holder


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
    assert int(body["data-timeline"]) == 6, body
    devices = document.having("data-device")
    assert [d["data-device"] for d in devices] == ["0", "1"]
    for device, history in zip(devices, run["history"]["devices"]):
        assert int(device["data-own"]) == history["own"][-1] > 0
        assert int(device["data-peak"]) == history["peak"][-1] > 0
    states = {(e["data-state"], e["data-count"]) for e in document.having("data-state")}
    assert states == {("sealed", "1"), ("reserved", "2")}, states
    drawn = document.having("data-verb")
    assert len(drawn) == sum(len(stage) for stage in timeline["stages"])
    assert {e["data-verb"] for e in drawn} >= {"F", "B"}
    for text in ("page test", "finished", "6 / 6", f"{run['history']['loss'][-1]:.4f}", "Memory per device"):
        assert text in document.text, f"'{text}' is not on the page"


def check_json(page):
    run = get(page, "/api/run")
    assert run["phase"] == "finished" and run["step"] == run["steps"] == 6
    assert run["history"]["step"] == [1, 2, 3, 4, 5, 6] and len(run["history"]["devices"]) == 2
    assert all(len(values) == 6 for device in run["history"]["devices"] for values in device.values())
    assert run["policy"]["name"] == "none" and run["step_tokens"] == 2 * 4 * 64
    timeline = wait_until(lambda: (lambda t: t if t["step"] == 6 else None)(get(page, "/api/timeline")), 60,
                          "no timeline of step 6")
    for stage in timeline["stages"]:
        operations = [name for name, wait, *_ in stage if not wait]
        assert sorted(operations) == sorted(f"{operations[0][0]}{verb}{i}" for verb in "FB" for i in range(4))
        assert all(0 <= begin <= end for _, _, begin, end, _ in stage)
    stores = wait_until(lambda: (lambda s: s if s[0].get("reachable") else None)(get(page, "/api/stores")), 60,
                        "the store does not answer the driver")
    assert stores[0]["leases"]["sealed"] == 1 and stores[0]["leases"]["reserved"] == 2
    return run, timeline


def main():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with ballast.scratch() as folder:
        services = []
        try:
            store = Service(folder, "activation-store", "--listen", f"unix:{folder}/store", "--capacity", "64 MiB")
            services.append(store)
            stages = [Service(folder, "stage-service", "--listen", f"unix:{folder}/stage{i}") for i in range(2)]
            services += stages
            job = write_job(folder, name="page.yaml", services={"stages": [s.address for s in stages],
                                                                "stores": [store.address, store.address]},
                            model=small_inline(), train={"steps": 6})
            with open(job) as file:
                text = json.load(file)
            with open(job, "w") as file:
                json.dump({"name": "page test", **text}, file)
            driver = Service(folder, "ballast-driver", "--job", job, "--listen", f"unix:{folder}/driver", "--linger",
                             "--metrics-listen", "127.0.0.1:0")
            services.append(driver)
            page = dashboard(driver)
            wait_until(lambda: get(page, "/api/run")["phase"] == "finished", 120, "the run has not finished")
            holder = Holder(store, "page", 0, 3)
            holder.tell("evict 1")
            run, timeline = check_json(page)
            is_self_contained(get(page, "/"))
            if chromium is not None:
                check_document(browse(chromium, folder, page), run, timeline)
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
