# SPDX-License-Identifier: Apache-2.0
"""Asks a Prometheus everything that deploy/k8s/components/grafana/ballast.json asks: the variables as Grafana fills them
in, then each panel's expressions, which must be accepted and, but for those that only speak of faults, find something."""
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DASHBOARD = os.path.join(ROOT, "deploy", "k8s", "components", "grafana", "ballast.json")
QUIET = {"Refusals by reason"}  # panels that have nothing to show while all is well


def ask(address, path, **arguments):
    """The data of an answer of Prometheus' API; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}", timeout=20) as got:
            said = json.load(got)
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it starts
            return None
        raise AssertionError(f"{path} {arguments}: {error.read()[:500]}") from error
    except OSError:
        return None
    assert said["status"] == "success", said
    return said["data"]


def found(address, expression):
    data = ask(address, "query", query=expression)
    return data["result"] if data else []


def fill_in(address, dashboard):
    """Values of the variables that are questions: label_values(metric, label), in order, with those before filled in."""
    values = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", insert(variable["query"], values)).groups()
            labels = {series["metric"].get(label) for series in found(address, metric)}
            assert len(labels) == 1 and None not in labels, f"${variable['name']}: {variable['query']} finds {labels}"
            values[variable["name"]] = labels.pop()
    return values


def insert(text, values):
    for name, value in values.items():
        text = text.replace(f"${name}", value)
    return text


def check_dashboard(address, seconds=120):
    """Until every panel has found something."""
    with open(DASHBOARD) as file:
        dashboard = json.load(file)
    values = fill_in(address, dashboard)
    open_questions = [(panel["title"], insert(target["expr"], values)) for panel in dashboard["panels"]
                      for target in panel.get("targets", [])]
    count, end = len(open_questions), time.monotonic() + seconds
    while True:
        open_questions = [(title, text) for title, text in open_questions
                          if not found(address, text) and title not in QUIET]
        if not open_questions:
            print(f"ok the dashboard's {count} questions have answers, for {values}", flush=True)
            return
        assert time.monotonic() < end, f"panels that show nothing: {open_questions}"
        time.sleep(0.5)
