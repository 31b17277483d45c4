# SPDX-License-Identifier: Apache-2.0
"""Watching a run with a real Prometheus: its configuration is deploy/compose's, with the addresses of processes in place of
containers' names, and the alert rules of deploy/k8s beside it. Every target is up, every question of the dashboard has an
answer, every rule is evaluated without a fault, and none fires in a run that is well. Needs the program prometheus."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys

from dashboard import ROOT, ask, check_dashboard, found
from manifests import skip, yaml

sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from ballast import Service, scratch, small_inline, wait_until, write_job  # noqa: E402

STAGES = 4
METRICS = ("--metrics-listen", "127.0.0.1:0")


def metrics_of(service):
    return re.search(r"metrics on http://([^/]+)/metrics", service.log())[1]


@contextlib.contextmanager
def services(folder):
    """A run that goes on, by the names that deploy/compose has for its parts."""
    running = {}
    try:
        for i in range(STAGES):
            running[f"stage-{i}"] = Service(folder, "stage-service", "--listen", "127.0.0.1:0", *METRICS)
            running[f"store-{i}"] = Service(folder, "activation-store", "--listen", f"unix:{folder}/store-{i}", "--capacity",
                                            "64 MiB", "--drain", "0", *METRICS)
        job = write_job(folder, model=small_inline(layers=STAGES), pipeline={"stages": STAGES}, memory={"slots": 3},
                        train={"steps": 1000000, "micro_batch": 1, "micro_batches": 8, "validate_every": 5},
                        data={"validation": 0.1}, balance={"policy": "bpipe"},
                        services={kind: [running[f"{name}-{i}"].address for i in range(STAGES)]
                                  for kind, name in (("stages", "stage"), ("stores", "store"))})
        running["driver"] = Service(folder, "ballast-driver", "--job", job, "--listen", "127.0.0.1:0", *METRICS)
        yield running
    finally:
        for service in running.values():
            service.kill(signal.SIGKILL)


def configure(folder, running):
    """deploy/compose/prometheus.yaml and the rules, for these processes: names and labels stay those of the containers."""
    with open(os.path.join(ROOT, "deploy", "compose", "prometheus.yaml")) as file:
        config = yaml.safe_load(file)
    with open(os.path.join(ROOT, "deploy", "k8s", "components", "prometheus-operator", "rules.yaml")) as file:
        rules = yaml.safe_load(file)["spec"]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = ["rules.yaml"]
    (scrape,) = config["scrape_configs"]
    for name, service in running.items():  # after the rules that read the name
        scrape["relabel_configs"].append({"source_labels": ["__address__"], "regex": re.escape(f"{name}:9600"),
                                          "target_label": "__address__", "replacement": metrics_of(service)})
    for name, content in (("prometheus.yaml", config), ("rules.yaml", rules)):
        with open(os.path.join(folder, name), "w") as file:
            yaml.safe_dump(content, file)


def check_rules(address):
    def evaluated():
        rules = [rule for group in ask(address, "rules")["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None
    rules = wait_until(evaluated, 120, "rules were not evaluated")
    sick = [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"]
    assert not sick, sick
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    assert not firing, f"alerts of a run that is well: {firing}"
    print(f"ok {len(rules)} rules are evaluated, none fires")


def main():
    if shutil.which("prometheus") is None:
        skip("no prometheus (Debian package prometheus)")
    with scratch() as folder, services(folder) as running:
        configure(folder, running)
        with open(os.path.join(folder, "prometheus.log"), "w") as log:
            prometheus = subprocess.Popen(["prometheus", "--config.file", f"{folder}/prometheus.yaml", "--storage.tsdb.path",
                                           f"{folder}/prometheus", "--web.listen-address", "127.0.0.1:0"],
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            def said(pattern):
                with open(log.name) as file:
                    text = file.read()
                assert prometheus.poll() is None, text[-3000:]
                return re.search(pattern, text)
            address = wait_until(lambda: said(r'msg="Listening on" address=(127\.0\.0\.1:[1-9]\d*)'), 120, "no address")[1]

            def all_up():
                said("")
                return len(found(address, "up == 1")) == len(running) and found(address, "ballast_run_step >= 6")
            wait_until(all_up, 120, "not all targets are up")
            print(f"ok {len(running)} targets are up")
            check_dashboard(address)
            check_rules(address)
        finally:
            prometheus.kill()
            prometheus.wait(60)


main()
