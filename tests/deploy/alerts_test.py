# SPDX-License-Identifier: Apache-2.0
"""Alerts and dashboard: promtool accepts the rules and their tests (alerts.yaml); every alert has such a test and a
section in docs/runbooks.md; rules and panels speak of metrics that docs/metrics.md has, by the labels it has."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPONENTS = os.path.join(ROOT, "deploy", "k8s", "components")
HERE = os.path.dirname(os.path.abspath(__file__))


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def metric_names():
    text = read(ROOT, "docs", "metrics.md")
    names = set(re.findall(r"`(ballast_[a-z_]+)`", text))
    return names | {f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")}


def check_metrics(where, expression, known):
    used = set(re.findall(r"\bballast_[a-z_]+", expression))
    assert used and used <= known, f"{where}: docs/metrics.md does not know {used - known or expression}"


def main():
    known = metric_names()
    spec = yaml.safe_load(read(COMPONENTS, "prometheus-operator", "rules.yaml"))["spec"]
    tested = {case["alertname"] for test in yaml.safe_load(read(HERE, "alerts.yaml"))["tests"]
              for case in test["alert_rule_test"] if case["exp_alerts"]}
    runbooks = read(ROOT, "docs", "runbooks.md")
    rules = [rule for group in spec["groups"] for rule in group["rules"]]
    for rule in rules:
        name = rule["alert"]
        check_metrics(name, rule["expr"], known)
        assert name in tested, f"{name} has no test that makes it fire"
        assert f"\n## {name}\n" in runbooks, f"{name} has no section in docs/runbooks.md"
        assert rule["annotations"]["runbook_url"].endswith(f"#{name.lower()}"), name
    panels = json.loads(read(COMPONENTS, "grafana", "ballast.json"))["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            check_metrics(panel["title"], target["expr"], known)
    assert len({panel["id"] for panel in panels}) == len(panels)
    print(f"ok {len(rules)} alerts and {len(panels)} panels speak of metrics that exist")
    if shutil.which("promtool") is None:
        print("SKIPPED: no promtool to run the tests of the rules with")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ballast-alerts-") as folder:
        with open(os.path.join(folder, "rules.yaml"), "w") as file:
            yaml.safe_dump(spec, file)
        shutil.copy(os.path.join(HERE, "alerts.yaml"), folder)
        for command in (["check", "rules", "rules.yaml"], ["test", "rules", "alerts.yaml"]):
            done = subprocess.run(["promtool", *command], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    print("ok promtool: rules and their tests")


main()
