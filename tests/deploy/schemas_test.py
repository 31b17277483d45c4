# SPDX-License-Identifier: Apache-2.0
"""What kubectl makes of deploy/k8s, base, overlays and components, and of what ballastctl render writes, is valid by the
schemas of the oldest and newest supported Kubernetes. Needs kubectl with kustomize and kubernetes-validate."""
import os
import subprocess
import tempfile

from manifests import BIN, ROOT, check_schemas, components, copy, need_kubectl, need_schemas, overlay, render

NEWER = {"dra": ("1.34", "1.37")}  # components that ask for more
RENDERED = {"plain": [], "pairs": ["--pairing", "pod", "--tls"],
            "set": ["--jobset", "--tls"],
            "node": ["--pairing", "node", "--tls", "--monitor", "--set", "checkpoint.folder=/somewhere"]}


def main():
    need_kubectl()
    need_schemas()
    with tempfile.TemporaryDirectory(prefix="ballast-schemas-") as folder:
        copied = copy(folder)
        overlays = os.path.join(copied, "overlays")
        for name, arguments in RENDERED.items():
            subprocess.run([os.path.join(BIN, "ballastctl"), "render", os.path.join(ROOT, "examples", "demo.yaml"), "--output",
                            os.path.join(overlays, f"rendered-{name}"), "--name", name, *arguments], check=True,
                           stdout=subprocess.DEVNULL)
        check_schemas("base", render(os.path.join(copied, "base")))
        for name in sorted(os.listdir(overlays)):
            check_schemas(f"overlay {name}", render(os.path.join(overlays, name)))
        for name, needs in components(copied):
            if name in NEWER:
                check_schemas(f"component {name}", render(overlay(copied, f"of-{name}", needs)), NEWER[name])
            else:
                check_schemas(f"component {name}", render(overlay(copied, f"of-{name}", needs)))


main()
