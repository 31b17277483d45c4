# SPDX-License-Identifier: Apache-2.0
"""A strict reader of Prometheus' text format 0.0.4, for tests: it refuses what promtool would complain about.

promtool itself is asked too where it is installed (Debian package prometheus).
"""
import http.client
import re
import shutil
import subprocess

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(,|\Z)')
UNITS = ("bytes", "seconds", "ratio", "total", "info")  # and plain counts of things


def labels_of(text):
    labels, at = [], 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"labels: {text!r}"
        labels.append((match[1], match[2]))
        at = match.end()
    assert len(set(name for name, _ in labels)) == len(labels), f"a label twice: {text!r}"
    return tuple(sorted(labels))


class Metrics:
    """`values[(name, labels)]`, `types[name]`. Raises AssertionError on any fault."""

    def __init__(self, text):
        assert text.endswith("\n"), "the text ends with a line feed"
        self.text, self.types, self.helps, self.values = text, {}, {}, {}
        current, closed = None, set()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                _, _, name, words = line.split(" ", 3)
                assert NAME.match(name) and name not in self.helps and words, line
                self.helps[name] = words
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                assert kind in ("counter", "gauge", "histogram") and name in self.helps, line
                assert name not in self.types, f"{name}: TYPE twice"
                self.types[name] = kind
                closed.add(current)
                current = name
            else:
                self.sample(line, current, closed)
        self.check()

    def sample(self, line, current, closed):
        match = SAMPLE.match(line)
        assert match, f"not a sample: {line!r}"
        name, labels, value = match[1], labels_of(match[2] or ""), float(match[3])
        family = name
        if family not in self.types:
            family = re.sub(r"_(bucket|sum|count)\Z", "", name)
            assert self.types.get(family) == "histogram", f"a sample without TYPE: {line}"
        assert family == current and family not in closed, f"samples of {family} are not together"
        assert (name, labels) not in self.values, f"twice: {line}"
        self.values[(name, labels)] = value

    def check(self):
        for name, kind in self.types.items():
            assert name.startswith("ballast_"), f"{name}: is not ours"
            assert name.endswith("_total") == (kind == "counter"), f"{name}: a {kind}"
            assert self.helps[name].endswith("."), f"{name}: its help is a sentence"
            if kind == "histogram":
                self.check_histogram(name)
            elif kind == "counter":
                assert all(value >= 0 for (n, _), value in self.values.items() if n == name), name
        assert len(self.values) < 300, f"{len(self.values)} series: their number must be small"

    def check_histogram(self, name):
        groups = {}
        for (sample, labels), value in self.values.items():
            if sample == f"{name}_bucket":
                rest = tuple(label for label in labels if label[0] != "le")
                groups.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        assert groups, f"{name}: no buckets"
        for rest, buckets in groups.items():
            assert [b for b, _ in buckets] == sorted(set(b for b, _ in buckets)), f"{name}: bounds ascend"
            counts = [c for _, c in buckets]
            assert counts == sorted(counts) and buckets[-1][0] == float("inf"), f"{name}: buckets are cumulative"
            assert self.values[(f"{name}_count", rest)] == counts[-1], f"{name}: _count is the last bucket"
            assert (f"{name}_sum", rest) in self.values

    def get(self, name, **labels):
        key = (name, tuple(sorted(labels.items())))
        assert key in self.values, f"there is no {name} {labels}"
        return self.values[key]


def fetch(address, path="/metrics"):
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read().decode()
    finally:
        connection.close()


def scrape(address):
    status, kind, text = fetch(address)
    assert status == 200 and kind == "text/plain; version=0.0.4; charset=utf-8", (status, kind)
    return Metrics(text)


def promtool(text):
    """False when it is not installed; raises when it complains."""
    program = shutil.which("promtool")
    if program is None:
        return False
    done = subprocess.run([program, "check", "metrics"], input=text, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, f"promtool: {done.stdout}{done.stderr}"
    return True
