# SPDX-License-Identifier: Apache-2.0
"""The network policies, evaluated as a cluster does, over two runs in one namespace: who reaches which port is what the
table of docs/kubernetes.md says, and nobody else does: not another run, not a stranger in the namespace, not another
namespace unless it may scrape; and what leaves a run goes to its own pods or to a name server. Also of pairs in one pod. Needs kubectl with kustomize."""
import itertools
import os
import re
import tempfile

from manifests import copy, need_kubectl, pods, render, table, yaml

SCRAPER = ("scraper", None)
STRANGER = ("stranger", None)
WHO = {"operators": "operator", "stages": "stage", "stores": "store", "driver": "driver"}


def overlay(folder, run, components):
    path = os.path.join(folder, "overlays", run)
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "kustomization.yaml"), "w") as file:
        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../../base"],
                        "components": [f"../../components/{name}" for name in components], "namePrefix": f"{run}-",
                        "labels": [{"includeSelectors": True, "includeTemplates": True,
                                    "pairs": {"app.kubernetes.io/instance": run}}]}, file)
    return render(path)


def selects(selector, labels):
    assert set(selector) <= {"matchLabels"}, selector
    return selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer, labels, own_namespace, namespace_labels):
    assert set(peer) <= {"podSelector", "namespaceSelector"} and peer, peer
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], namespace_labels):
            return False
    elif not own_namespace:
        return False
    return "podSelector" not in peer or selects(peer["podSelector"], labels)


class Cluster:
    def __init__(self, runs):
        self.policies, self.pods = [], {}
        for run, documents in runs.items():
            self.policies += [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
            for _, _, template in pods(documents):
                labels = template["metadata"]["labels"]
                ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
                self.pods[labels["app.kubernetes.io/component"], run] = (labels, ports)
            of_run = {key: value for key, value in labels.items() if key != "app.kubernetes.io/component"}
            self.pods["operator", run] = ({**of_run, "ballast.dev/operator": "true"}, {})
        self.pods[STRANGER] = ({"app": "something"}, {})
        self.pods[SCRAPER] = ({"app": "prometheus"}, {})

    def applying(self, kind, labels):
        assert all(set(policy["policyTypes"]) <= {"Ingress", "Egress"} for policy in self.policies)
        return [policy for policy in self.policies if kind in policy["policyTypes"] and selects(policy["podSelector"], labels)]

    def leaves(self, source, labels, ports, port):
        """Whether the source may send to a pod of this namespace that has these labels and ports; None: no such pod."""
        applying = self.applying("Egress", self.pods[source][0])
        for policy in applying:
            for rule in policy.get("egress", []):
                known = [ports.get(entry["port"], entry["port"]) for entry in rule.get("ports", [])]
                if known and port not in known:
                    continue
                if "to" not in rule or labels is not None and any(is_peer(peer, labels, True, {}) for peer in rule["to"]):
                    return True
        return not applying

    def reaches(self, source, target, port):
        """By the rules of NetworkPolicy: a pod that policies speak of takes what one of them allows, others take all."""
        labels, ports = self.pods[target]
        source_labels, _ = self.pods[source]
        own = source != SCRAPER
        namespace = {} if own else {"ballast.dev/scrapes": "true"}
        applying = self.applying("Ingress", labels)
        if not self.leaves(source, labels, ports, port):
            return False
        for policy in applying:
            for rule in policy.get("ingress", []):
                if not any(is_peer(peer, source_labels, own, namespace) for peer in rule["from"]):
                    continue
                if "ports" not in rule or port in [ports.get(entry["port"]) for entry in rule["ports"]]:
                    return True
        return not applying


def documented():
    """{(of, port): who}: the table, as far as it names numbers; stages reach stages everywhere."""
    found = {}
    for numbers, programs, _, _, who in table("Ports"):
        names = {WHO[word] for word in re.findall(r"\w+", who) if word in WHO}
        names |= {"scraper"} if "scrapes" in who else set()
        for number, program in zip(numbers.split(", "), programs.split(", ") if ", " in programs else [programs] * 9):
            for component in ("driver", "stage", "store") if program == "all" else (program,):
                if number.isdigit() and component in ("driver", "stage", "store"):
                    found[component, int(number)] = names
    return found


def check_runs(cluster, runs):
    rows = documented()
    assert len(rows) == 10, rows  # control and health of three, data of a store, metrics of three
    questions = 0
    for (component, port), who in rows.items():
        for source, run in itertools.product(cluster.pods, runs):
            kind, of = source
            if component == "stage" and kind == "stage":
                expected = of == run  # tensors take ports of their own, so all are open between stages
            elif port % 100 == 1:
                expected = of == run and cluster.reaches(source, (component, run), port)  # who may ask is not documented
            else:
                expected = kind in who and of in (run, None)
            got = cluster.reaches(source, (component, run), port)
            assert got == expected, f"{source} to {component} of {run} at {port}: {got}, the table says {expected}"
            questions += 1
    for run, kind in itertools.product(runs, ("stage", "store", "driver", "operator")):
        assert cluster.leaves((kind, run), None, {}, 53), "name servers"
        assert not cluster.leaves((kind, run), None, {}, 443) and not cluster.leaves((kind, run), {"app": "other"}, {}, 7700), run
    assert cluster.leaves(STRANGER, None, {}, 443), "others may do as they like"
    for run in runs:
        assert cluster.reaches(("stage", run), ("stage", run), 40123) and not cluster.reaches(("driver", run), ("stage", run), 40123)
    return questions


def check_pairs(folder):
    cluster = Cluster({run: overlay(folder, run, ["pair-pod"]) for run in ("one", "two")})
    for port in (7700, 7710, 7800, 7810, 7820):
        for source in cluster.pods:
            expected = source[1] == "one" and source[0] in ("driver", "stage", "operator")
            assert cluster.reaches(source, ("stage", "one"), port) == expected, (source, port)
    for port in (9600, 9605, 9610, 9615, 9625):
        assert cluster.reaches(SCRAPER, ("stage", "one"), port), port
    assert not cluster.reaches(SCRAPER, ("stage", "one"), 7700)
    print("ok pairs in one pod: the same")


def main():
    need_kubectl()
    with tempfile.TemporaryDirectory(prefix="ballast-network-") as folder:
        copied = copy(folder)
        runs = {run: overlay(copied, run, []) for run in ("one", "two")}
        questions = check_runs(Cluster(runs), runs)
        print(f"ok two runs in a namespace: {questions} questions of who reaches what, as the ports table says")
        check_pairs(copied)


main()
