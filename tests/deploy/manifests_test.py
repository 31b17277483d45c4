# SPDX-License-Identifier: Apache-2.0
"""The manifests under deploy/k8s: every overlay renders, and every component over the base, and passes the checks of
manifests.py; two runs in one namespace share no name. Needs kubectl with kustomize."""
import json
import os
import re
import tempfile

from manifests import BUILT_IN, KUBERNETES, check, check_documents, copy, need_kubectl, render, yaml

NEWER = {"dra": ("1.34", "1.37")}  # components that ask for more


def names_of(documents):
    names = {(d["kind"], d["metadata"]["name"]) for d in documents}
    text = json.dumps([d for d in documents])
    secrets = {("Secret", name) for name in re.findall(r'"secretName": "([^"]+)"', text)}
    return names | secrets


def overlay(folder, name, components):
    path = os.path.join(folder, "overlays", name)
    os.mkdir(path)
    with open(os.path.join(path, "kustomization.yaml"), "w") as file:
        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../../base"],
                        "components": [f"../../components/{c}" for c in components], "namePrefix": f"{name}-",
                        "labels": [{"includeSelectors": True, "includeTemplates": True,
                                    "pairs": {"app.kubernetes.io/instance": name}}]}, file)
    return path


def main():
    need_kubectl()
    check_documents()
    with tempfile.TemporaryDirectory(prefix="ballast-deploy-") as folder:
        copied = copy(folder)
        base = render(os.path.join(copied, "base"))
        check("base", base, instance=False)
        assert {d["apiVersion"] for d in base} <= BUILT_IN, "the base needs no custom resource"
        for name in sorted(os.listdir(os.path.join(copied, "overlays"))):
            check(f"overlay {name}", render(os.path.join(copied, "overlays", name)))
        needs = {"dra": ["cuda", "pair-pod", "dra"]}
        everything = {}
        for name in sorted(os.listdir(os.path.join(copied, "components"))):
            for run in ("one", "two"):
                documents = render(overlay(copied, f"{run}-{name}", needs.get(name, [name])))
                everything[run] = names_of(documents)
            shared = everything["one"] & everything["two"]
            assert not shared, f"component {name}: two runs in a namespace share {shared}"
            check(f"component {name}", documents, job=False, versions=NEWER.get(name, KUBERNETES),
                  allowed={"IPC_LOCK"} if name == "rdma" else frozenset())


main()
