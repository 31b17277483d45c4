# SPDX-License-Identifier: Apache-2.0
"""The manifests under deploy/k8s: every overlay renders, and every component over the base, and passes the checks of
manifests.py; two runs in one namespace share no name. Needs kubectl with kustomize."""
import json
import os
import re
import subprocess
import tempfile

from manifests import BUILT_IN, PAIR_PORTS, PORTS, ROOT, check, check_documents, components, copy, need_kubectl, overlay, pods, render

def names_of(documents):
    names = {(d["kind"], d["metadata"]["name"]) for d in documents}
    text = json.dumps([d for d in documents])
    secrets = {("Secret", name) for name in re.findall(r'"secretName": "([^"]+)"', text)}
    return names | secrets


def one(documents, component):
    """The container of a program; None where there is no StatefulSet of it."""
    return next((t["spec"]["containers"][0] for k, _, t in pods(documents)
                 if k == "StatefulSet" and t["metadata"]["labels"]["app.kubernetes.io/component"] == component), None)


def check_gpus(where, documents):
    """Where GPUs are asked for, stores lend their memory."""
    asking = {name for _, name, t in pods(documents)
              if any(key.startswith("nvidia.com/") for key in t["spec"]["containers"][0]["resources"]["limits"])}
    if not asking:
        return
    if any(name.endswith("store") for name in asking):
        assert "--device=cuda:0" in one(documents, "store")["args"], where
    stage = one(documents, "stage")
    if stage is None:  # of a JobSet: a pod each, which no store shares
        assert "stage" in asking, asking
        return
    env = {e["name"]: e.get("value") for e in stage["env"]}
    assert env.get("STORE_DEVICE") == "cuda", (where, env)


def check_pair():
    """The pair-pod's script gives each stage and its store a GPU, and listens where the manifests say; a store of the host
    lends what it is told, of pinned memory where there are GPUs."""
    with tempfile.TemporaryDirectory(prefix="ballast-pair-") as folder:
        for program in ("stage-service", "activation-store"):
            os.symlink("/bin/true", os.path.join(folder, program))
        for device, host in (("cuda", "64 MiB"), ("", "64 MiB"), ("cuda", ""), ("", "")):
            done = subprocess.run([os.path.join(ROOT, "deploy", "docker", "pair.sh"), "--plaintext"], text=True,
                                  env={"PATH": f"{folder}:{os.environ['PATH']}", "STORE_DEVICE": device, "POD_INDEX": "1",
                                       "HOST_CAPACITY": host},
                                  capture_output=True, timeout=120)
            said = re.findall(r"--(device=\S+|gpu=\S+)", done.stderr)
            assert done.returncode == 0, done.stderr
            listens = {int(port) for port in re.findall(r"-(?:listen|tcp)=[0-9.]+:(\d+)", done.stderr)}
            of_host = {7820, 7821, 7822, 9625}
            assert listens == PORTS["stage"] | PAIR_PORTS - (set() if host else of_host), done.stderr
            assert said == (["gpu=0", "device=cuda:0", "gpu=1", "device=cuda:1"] + ["device=cuda:0"] * (host != "")
                            if device else []), done.stderr
            spills, threads = re.findall(r"--spill=(\d+ MiB)", done.stderr), re.findall(r"--threads=(\d)", done.stderr)
            assert (spills, threads) == ((["64 MiB"] if device else []), ["2"]) if host else ([], []), done.stderr
            assert done.stderr.count("--capacity=64 MiB") == (host != "" and device == ""), done.stderr
    print("ok the programs of a pair share its two GPUs")


def check_monitor(where, documents, instance):
    """A monitor scrapes the pods of its own run."""
    for document in documents:
        if document["kind"] == "PodMonitor":
            labels = document["spec"]["selector"]["matchLabels"]
            assert labels.get("app.kubernetes.io/instance") == instance, (where, labels)


def check_site(copied):
    """The patch of docs/kubernetes.md fits, and the component beside it reaches every pod."""
    with open(os.path.join(ROOT, "docs", "kubernetes.md")) as file:
        patch = re.search(r"^```yaml\n(patches:.*?)^```$", file.read(), re.M | re.S).group(1)
    path = overlay(copied, "site", ["pull-secret"])
    with open(os.path.join(path, "kustomization.yaml"), "a") as file:
        file.write(patch)
    documents = render(path)
    check("a site's patch", documents, job=False)
    for _, name, template in pods(documents):
        spec = template["spec"]
        assert (spec["priorityClassName"], spec["nodeSelector"]) == ("training", {"pool": "training"}), (name, spec)
    accounts = [d for d in documents if d["kind"] == "ServiceAccount"]
    assert len(accounts) == 3 and all(d["imagePullSecrets"] == [{"name": "registry"}] for d in accounts), accounts


def main():
    need_kubectl()
    check_documents()
    check_pair()
    with tempfile.TemporaryDirectory(prefix="ballast-deploy-") as folder:
        copied = copy(folder)
        base = render(os.path.join(copied, "base"))
        check("base", base, instance=False)
        assert {d["apiVersion"] for d in base} <= BUILT_IN, "the base needs no custom resource"
        for name in sorted(os.listdir(os.path.join(copied, "overlays"))):
            documents = render(os.path.join(copied, "overlays", name))
            check(f"overlay {name}", documents)
            check_gpus(name, documents)
        check_site(copied)
        everything = {}
        for name, needs in components(copied):
            for run in ("one", "two"):
                documents = render(overlay(copied, f"{run}-{name}", needs))
                everything[run] = names_of(documents)
                check_monitor(name, documents, f"{run}-{name}")
            shared = everything["one"] & everything["two"]
            assert not shared, f"component {name}: two runs in a namespace share {shared}"
            check(f"component {name}", documents, job=False, allowed={"IPC_LOCK"} if name == "rdma" else frozenset())
            check_gpus(name, documents)


main()
