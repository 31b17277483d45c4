# SPDX-License-Identifier: Apache-2.0
"""ballastctl render: what it writes for several jobs renders with kubectl and passes the checks of the manifests; the job
in it is one that ballastctl reads; memory and room follow the plan; names and flags that are wrong are refused."""
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile

import manifests

CTL = os.path.join(os.environ.get("BALLAST_BIN", os.path.join(manifests.ROOT, "build", "bin")), "ballastctl")
JOB = os.path.join(manifests.ROOT, "examples", "demo.yaml")
BPIPE = ["--set", "balance.policy=bpipe", "--set", "memory.slots=3"]


def render(folder, *arguments, expect=0, job=JOB):
    done = subprocess.run([CTL, "render", job, "--output", folder, *arguments], capture_output=True, text=True)
    assert done.returncode == expect, f"{arguments}: exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout if expect == 0 else done.stderr


def container(documents, kind, name):
    return next(template["spec"] for k, n, template in manifests.pods(documents) if k == kind and n == name)


def processors(documents, name):
    """What it asks for; there is no limit: what is idle may be used."""
    resources = container(documents, "StatefulSet", name)["containers"][0]["resources"]
    assert "cpu" not in resources["limits"], resources
    return resources["requests"]["cpu"]


def mebibytes(documents, name):
    resources = container(documents, "StatefulSet", name)["containers"][0]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]
    return int(re.fullmatch(r"(\d+)Mi", resources["limits"]["memory"]).group(1))


def check_jobset(documents, memory):
    """Stages and driver are in the JobSet, as large and as secured as they would be without it."""
    (jobset,) = (d for d in documents if d["kind"] == "JobSet")
    jobs = {job["name"]: job["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]}
    assert (jobs["stage"]["completions"], jobs["stage"]["parallelism"]) == (4, 4), jobs["stage"]
    stage, driver = (jobs[name]["template"]["spec"] for name in ("stage", "driver"))
    assert stage["containers"][0]["resources"] == {"requests": {"cpu": "1000m", "memory": f"{memory}Mi"},
                                                   "limits": {"memory": f"{memory}Mi"}}, stage["containers"][0]["resources"]
    assert stage["terminationGracePeriodSeconds"] == driver["terminationGracePeriodSeconds"] == 61, stage
    for spec, secret in ((stage, "set-stage-tls"), (driver, "set-driver-tls")):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["tls"]["secret"]["secretName"] == secret, volumes
        assert volumes["checkpoints"]["persistentVolumeClaim"]["claimName"] == "set-checkpoints", volumes
        for one in spec["containers"] + spec.get("initContainers", []):
            assert "--tls-ca=/etc/ballast/tls/ca.crt" in one["args"] and "--plaintext" not in one["args"], one["args"]
    assert not [d for d in documents if (d["kind"], d["metadata"]["name"]) in (("Job", "set-driver"), ("StatefulSet", "set-stage"))]


def check_grid(documents):
    """A pod for every rank; on one node go both stages of a pair with all of their tensor ranks."""
    sets = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "StatefulSet"}
    stages, tensor, data = 4, 2, 2
    for name in ("grid-stage", "grid-store"):
        assert sets[name]["replicas"] == stages * tensor * data, (name, sets[name]["replicas"])
    notes = sets["grid-stage"]["template"]["metadata"]["annotations"]
    assert notes["kueue.x-k8s.io/podset-slice-size"] == str(2 * tensor), notes


def check_certificates(documents):
    """A pair-pod has a certificate for its stages and one for its stores, of names that are made."""
    spec = container(documents, "StatefulSet", "secure-stage")
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    made = {d["metadata"]["name"]: d["spec"]["uris"] for d in documents if d["kind"] == "Certificate" and "uris" in d["spec"]}
    assert {name: made[secret] for name, secret in secrets.items()} == {"tls": ["ballast://stage"],
                                                                        "store-tls": ["ballast://store"]}, (secrets, made)
    pod = spec["containers"][0]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["volumeMounts"]}
    assert f"--tls-key={mounts['tls']}/tls.key" in pod["args"] and "--plaintext" not in pod["args"], pod["args"]
    assert {"name": "STORE_TLS", "value": mounts["store-tls"]} in pod["env"], pod["env"]


HOST = ["--pairing", "pod", "--set", "balance.policy=offload", "--set", "balance.mode=fewest", "--set", "memory.slots=2",
        "--set", "balance.host=100000000"]


def check_hosts(path, documents, others):
    """A host store per pod, which both stages of it find by the pod's name; the pod is as much larger as it may lend."""
    job = manifests.yaml.safe_load(open(os.path.join(path, "job.yaml")))
    stages, hosts = job["services"]["stages"], job["services"]["host_stores"]
    assert hosts == [f"host-stage-{pod}.host-stage:7820" for pod in range(len(stages) // 2)], hosts
    assert {address.rsplit(":", 1)[0] for address in stages} == {address.rsplit(":", 1)[0] for address in hosts}, job["services"]
    one = container(documents, "StatefulSet", "host-stage")["containers"][0]
    values = {entry["name"]: entry.get("value") for entry in one["env"]}
    lends = (100000000 + 65535) // 65536 * 65536
    assert int(values["HOST_CAPACITY"]) == lends and int(values["STORE_CAPACITY"]) == 65536, values
    assert one["resources"]["requests"]["cpu"] == "2350m", one["resources"]  # two stages, two idle stores, the host's
    more = mebibytes(documents, "host-stage") - mebibytes(others, "pairs-stage")
    assert -40 < more - (lends + (128 << 20)) / (1 << 20) < 2, more  # and fewer slots of its own
    assert "HOST_CAPACITY" not in str(others)
    (monitor,) = (d for d in documents if d["kind"] == "PodMonitor")
    assert [e["port"] for e in monitor["spec"]["podMetricsEndpoints"]][-1] == "metrics-host", monitor
    print("ok a host store in every pod")


def put(*path):
    """A file of text."""
    os.makedirs(os.path.dirname(os.path.join(*path)), exist_ok=True)
    return shutil.copy(os.path.join(manifests.ROOT, "LICENSE"), os.path.join(*path))


def setting(**keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key.replace('_', '.')}={json.dumps(value)}")]


def job_of(path):
    with open(os.path.join(path, "job.yaml")) as file:
        return manifests.yaml.safe_load(file)


def check_files(folder, base):
    """Pods find each file by its name, whatever it is made of; two files of one name are refused; what is not below /usr
    needs a volume."""
    near, far, odd = put(folder, "near", "text"), put(folder, "far", "text"), put(folder, "odd dir, it's", 'q: #"\\z\'.txt')
    model = shutil.copytree(os.path.join(manifests.ROOT, "tests", "golden", "gpt2"), os.path.join(folder, "model"))
    path, twice = os.path.join(base, "overlays", "files"), os.path.join(folder, "far", "..", "near", "text")
    gpt = os.path.join(folder, "gpt.yaml")
    with open(gpt, "w") as file:
        json.dump({"name": "gpt", "model": {"init": "model//", "seq": 32}, "pipeline": {"stages": 2},
                   "data": {"train": "model/tokens.bin", "format": "bin"},
                   "train": {"steps": 1, "micro_batch": 1, "micro_batches": 4, "lr": 1e-3}}, file)
    for job, arguments, words in (
            (JOB, setting(data_train=[near, far]), (f"'{far}' and '{near}'", "both be /data/text")),
            (JOB, setting(data_train=[near], data_validation=[far]), ("data.validation", f"'{far}' and '{near}' (data.train)")),
            (gpt, setting(data_train=[shutil.copy(f"{model}/tokens.bin", os.path.join(folder, "far", "model"))]),
             ("model.init: ", "far/model' (data.train) would both be /data/model")),
            (gpt, setting(model_init=model + "/."), ("model/.' does not end with a name",))):
        said = render(path, "--name", "files", *arguments, expect=2, job=job)
        assert all(word in said for word in words), (arguments, said)
    assert not os.path.exists(path)
    render(path, "--name", "files", "--checkpoints", "/odd: #1", *setting(data_train=[near, odd], data_validation=[twice],
                                                                          checkpoint_folder="/somewhere"))
    job = job_of(path)
    assert job["data"]["train"] == ["/data/text", "/data/" + os.path.basename(odd)], job["data"]
    assert job["data"]["validation"] == ["/data/text"] and job["checkpoint"]["folder"] == "/odd: #1", job
    render(path, job=gpt)
    assert job_of(path)["model"]["init"] == "/data/model", job_of(path)
    for held_out, wanted in ((near, True), ("/usr/share/common-licenses/GPL-3", False)):
        said = render(path, "--name", "files", *setting(data_validation=[held_out]))
        claims = [v for v in container(manifests.render(path), "StatefulSet", "files-stage")["volumes"] if "persistentVolumeClaim" in v]
        assert bool(claims) == ("volume claim" in said) == wanted, (held_out, said, claims)
    print("ok files of any name, never two by one name, and a volume where one is needed")


def check_identity(folder):
    """Files of a workstation's certificate are not the pods': theirs are in the arguments, or they have none."""
    files = setting(**{f"services_tls_{key}": f"/home/{key}.pem" for key in ("ca", "certificate", "key")})
    for arguments in ([], ["--tls"]):
        path = os.path.join(folder, "identity")
        render(path, *files, *arguments)
        services = job_of(path)["services"]
        assert not [key for key in services if key.startswith("tls")] and "/home" not in str(services), services
    print("ok pods have their own certificates")


def main():
    manifests.need_kubectl()
    cases = {
        "plain": [],
        "bpipe": BPIPE,
        "eight": ["--set", "pipeline.stages=4", "--set", "train.micro_batches=16", *BPIPE],
        "threads": ["--set", "pipeline.threads=6", *BPIPE],
        "pairs": ["--pairing", "pod", *BPIPE],
        "secure": ["--pairing", "pod", "--tls", *BPIPE],
        "node": ["--pairing", "node", "--tls", "--monitor", "--set", "checkpoint.folder=/somewhere", *BPIPE],
        "set": ["--jobset", "--pairing", "node", "--tls", "--set", "checkpoint.folder=/somewhere", *BPIPE],
        "grid": ["--pairing", "node", "--set", "parallel.tensor=2", "--set", "parallel.data=2"],
        "host": [*HOST, "--monitor"],
        "mirror": ["--images", "registry.example/team/", "--tag", "1.2.3"],
    }
    with tempfile.TemporaryDirectory(prefix="ballast-render-") as folder:
        copy = manifests.copy(folder)
        check_files(folder, copy)
        check_identity(folder)
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
        found = {name: processors(made[name], f"{name}-stage") for name in ("plain", "threads", "pairs")}
        assert found == {"plain": "1000m", "threads": "6000m", "pairs": "2500m"}, found
        assert [processors(made[name], f"{name}-store") for name in ("plain", "bpipe")] == ["50m", "250m"]
        assert container(made["mirror"], "StatefulSet", "mirror-store")["containers"][0]["image"] == \
            "registry.example/team/ballast-store:1.2.3"
        assert container(made["mirror"], "Job", "mirror-driver")["initContainers"][0]["image"] == \
            "registry.example/team/ballast-tools:1.2.3"
        volumes = [v for v in container(made["node"], "StatefulSet", "node-stage")["volumes"] if "persistentVolumeClaim" in v]
        assert {v["persistentVolumeClaim"]["claimName"] for v in volumes} == {"node-data", "node-checkpoints"}
        check_grid(made["grid"])
        check_hosts(os.path.join(copy, "overlays", "host"), made["host"], made["pairs"])
        print("ok memory and processors follow the plan, files and checkpoints go to claims")
        check_certificates(made["secure"])
        assert mebibytes(made["node"], "node-stage") > mebibytes(made["bpipe"], "bpipe-stage")  # it writes checkpoints
        check_jobset(made["set"], mebibytes(made["node"], "node-stage"))
        for path in (os.path.join(folder, "else", "where"), os.path.join(copy, "overlays", "inside")):
            said = render(path, "--name", "far", "--base", copy, *BPIPE)
            assert said.endswith(f"  next: kubectl apply -k {path}\n"), said
            manifests.check(f"rendered to {path}", manifests.render(path))
        lost = os.path.join(folder, "lost")
        for wrong in ("/no-such", os.path.join(copy, "overlays")):
            said = render(lost, "--base", wrong, expect=3)
            assert f"--base {wrong}: there is no base/kustomization.yaml in it" in said, said
        assert not os.path.exists(lost)
        for name in ("near", "with blanks", "a'quote", "a$HOME;x"):
            place = os.path.join(copy, "overlays", name)
            line, = [line for line in render(place, "--name", "near").splitlines() if line.startswith("  next: ")]
            assert shlex.split(line) == ["next:", "kubectl", "apply", "-k", place], line
            assert ("'" in line) == (name != "near"), line
        for name in ("true", "no", "null", "y"):  # words that are no text in YAML
            place = os.path.join(copy, "overlays", name)
            render(place, "--name", name, "--images", "localhost:5000/team/", "--tag", "1")
            manifests.check(f"rendered {name}", manifests.render(place))
        said = render(os.path.join(folder, "astray"), "--name", "astray")
        assert "--base" in said and "next: kubectl apply" not in said, said
        print("ok an absolute base is written as seen from the overlay, where kustomize takes it")
        other = os.path.join(folder, "other")
        for arguments, words in {("--name", "Demo_1"): "lower case", ("--tag", "a b"): "--tag", ("--tag", ""): "--tag",
                                 ("--tag", "x" * 129): "--tag", ("--tag", '1"'): "--tag", ("--images", "a, b"): "--images",
                                 ("--images", "https://r.example/"): "--images", ("--pairing", "rack"): "pairing",
                                 ("--pairing", "pod", "--jobset"): "do not go together",
                                 ("--set", "balance.policy=bpipe", "--set", "memory.slots=1"): "smallest that works",
                                 tuple(HOST[2:]): "balance.host: a host store runs in the pod of the stages",
                                 ("--pairing", "node", *HOST[2:]): "--pairing pod",
                                 ("--set", "pipeline.stages=99"): "pipeline.stages"}.items():
            said = render(other, *arguments, expect=2)
            assert words in said, (arguments, said)
        assert not os.path.exists(other)
        print("ok refused: a name, a pairing, a budget and a pipeline that cannot be; nothing was written")


main()
