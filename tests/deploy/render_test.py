# SPDX-License-Identifier: Apache-2.0
"""ballastctl render: what it writes for several jobs renders with kubectl and passes the checks of the manifests; the job
in it is one that ballastctl reads; memory and room follow the plan; names and flags that are wrong are refused."""
import os
import re
import subprocess
import tempfile

import manifests

CTL = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(manifests.ROOT, "build", "bin")), "ballastctl")
JOB = os.path.join(manifests.ROOT, "examples", "demo.yaml")
BPIPE = ["--set", "balance.policy=bpipe", "--set", "memory.slots=3"]


def render(folder, *arguments, expect=0):
    done = subprocess.run([CTL, "render", JOB, "--output", folder, *arguments], capture_output=True, text=True)
    assert done.returncode == expect, f"{arguments}: exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout if expect == 0 else done.stderr


def container(documents, kind, name):
    return next(template["spec"] for k, n, template in manifests.pods(documents) if k == kind and n == name)


def mebibytes(documents, name):
    resources = container(documents, "StatefulSet", name)["containers"][0]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    return int(re.fullmatch(r"(\d+)Mi", resources["limits"]["memory"]).group(1))


def main():
    manifests.need_kubectl()
    cases = {
        "plain": [],
        "bpipe": BPIPE,
        "eight": ["--set", "pipeline.stages=4", "--set", "train.micro_batches=16", *BPIPE],
        "pairs": ["--pairing", "pod", *BPIPE],
        "node": ["--pairing", "node", "--tls", "--monitor", "--set", "checkpoint.folder=/somewhere", *BPIPE],
        "mirror": ["--images", "registry.example/team/", "--tag", "1.2.3"],
    }
    with tempfile.TemporaryDirectory(prefix="ballast-render-") as folder:
        copy = manifests.copy(folder)
        made = {}
        for name, arguments in cases.items():
            path = os.path.join(copy, "overlays", name)
            render(path, "--name", name, *arguments)
            made[name] = manifests.render(path)
            manifests.check(f"rendered {name}", made[name])
            done = subprocess.run([CTL, "simulate", os.path.join(path, "job.yaml")], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        assert mebibytes(made["bpipe"], "bpipe-stage") < mebibytes(made["plain"], "plain-stage")
        assert mebibytes(made["bpipe"], "bpipe-store") > mebibytes(made["plain"], "plain-store")
        assert container(made["mirror"], "StatefulSet", "mirror-store")["containers"][0]["image"] == \
            "registry.example/team/ballast-store:1.2.3"
        assert container(made["mirror"], "Job", "mirror-driver")["initContainers"][0]["image"] == \
            "registry.example/team/ballast-tools:1.2.3"
        volumes = [v for v in container(made["node"], "StatefulSet", "node-stage")["volumes"] if "persistentVolumeClaim" in v]
        assert {v["persistentVolumeClaim"]["claimName"] for v in volumes} == {"node-data", "node-checkpoints"}
        print("ok memory follows the plan, files and checkpoints go to claims")
        other = os.path.join(folder, "other")
        for arguments, words in {("--name", "Demo_1"): "lower case", ("--pairing", "pod", "--tls"): "one certificate", ("--pairing", "rack"): "pairing",
                                 ("--set", "balance.policy=bpipe", "--set", "memory.slots=1"): "smallest that works",
                                 ("--set", "pipeline.stages=99"): "pipeline.stages"}.items():
            said = render(other, *arguments, expect=2)
            assert words in said, (arguments, said)
        assert not os.path.exists(other)
        print("ok refused: a name, a pairing, a budget and a pipeline that cannot be; nothing was written")


main()
