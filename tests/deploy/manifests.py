# SPDX-License-Identifier: Apache-2.0
"""Checks of rendered manifests, shared by the tests beside this file: the restricted pod security standard and the rules of
docs/kubernetes.md: labels, probes, resources, no `latest`, no cluster-scoped object, ports as the table says, jobs that
name pods which exist. And the schemas of the oldest and newest supported Kubernetes, where kubernetes-validate is installed
(schemas_test.py)."""
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys

try:
    import yaml
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KUBERNETES = ("1.29", "1.37")  # the oldest and the newest that are supported
PORTS = {"driver": {7600, 7601, 9600}, "stage": {7700, 7701, 9600}, "store": {7800, 7801, 7802, 9600}}
PAIR_PORTS = {7710, 7711, 7800, 7801, 7802, 7810, 7811, 7812, 7820, 7821, 7822, 9605, 9610, 9615, 9625}  # beside those of a stage
PROGRAMS = {"stage": "stage-service", "store": "activation-store", "driver": "ballast-driver"}
BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
NAMESPACED = {"ServiceAccount", "ConfigMap", "Service", "StatefulSet", "Job", "JobSet", "NetworkPolicy",
              "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "PersistentVolumeClaim", "Certificate", "Issuer",
              "ResourceClaimTemplate"}
BUILT_IN = {"v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "resource.k8s.io/v1"}


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def need_kubectl():
    if shutil.which("kubectl") is None or subprocess.run(["kubectl", "kustomize", "--help"],
                                                         capture_output=True).returncode != 0:
        skip("no kubectl with kustomize")


def copy(folder):
    """A copy of deploy/k8s, to put overlays into."""
    return shutil.copytree(os.path.join(ROOT, "deploy", "k8s"), os.path.join(folder, "k8s"))


def render(folder):
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def overlay(folder, name, components):
    path = os.path.join(folder, "overlays", name)
    os.mkdir(path)
    with open(os.path.join(path, "kustomization.yaml"), "w") as file:
        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../../base"],
                        "components": [f"../../components/{c}" for c in components], "namePrefix": f"{name}-",
                        "labels": [{"includeSelectors": True, "includeTemplates": True,
                                    "pairs": {"app.kubernetes.io/instance": name}}]}, file)
    return path


def components(copied):
    """Every component, with those that it is used with; and what goes with JobSet."""
    for name in ("cuda", "kueue", "mtls", "shared-volumes"):
        yield f"jobset-{name}", ["jobset", name]
    yield "jobset-all", ["jobset", "cuda", "shared-volumes", "mtls", "kueue"]
    needs = {"dra": ["cuda", "pair-pod", "dra"], "pair-mtls": ["pair-pod", "mtls", "pair-mtls"]}
    for name in sorted(os.listdir(os.path.join(copied, "components"))):
        yield name, needs.get(name, [name])


def pods(documents):
    """Kind, name and pod template of everything that makes pods."""
    for document in documents:
        if document["kind"] in ("StatefulSet", "Job"):
            yield document["kind"], document["metadata"]["name"], document["spec"]["template"]
        elif document["kind"] == "JobSet":
            for job in document["spec"]["replicatedJobs"]:
                yield "JobSet", job["name"], job["template"]["spec"]["template"]


def check_security(where, template, allowed):
    """The restricted pod security standard, as far as it speaks of what is used here."""
    spec = template["spec"]
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True and context["runAsUser"] >= 1000, where
    assert context["seccompProfile"]["type"] == "RuntimeDefault", where
    assert spec["automountServiceAccountToken"] is False, where
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        assert not spec.get(key), (where, key)
    for container in spec["containers"] + spec.get("initContainers", []):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["readOnlyRootFilesystem"] is True, where
        assert own["capabilities"]["drop"] == ["ALL"], where
        assert set(own["capabilities"].get("add", [])) <= allowed, (where, own["capabilities"])
        assert "memory" in container["resources"]["limits"], where
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), where
        assert "hostPort" not in json.dumps(container.get("ports", [])), where
    for volume in spec.get("volumes", []):
        assert set(volume) - {"name"} <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim"}, (where, volume)
        if "secret" in volume:  # it is root's, and readable for the group that Kubernetes gives it
            assert volume["secret"]["defaultMode"] == 0o440 and context.get("fsGroup") == context["runAsGroup"], (where, context)


def image_targets():
    """The images that deploy/docker can make."""
    with open(os.path.join(ROOT, "deploy", "docker", "Dockerfile")) as file:
        return set(re.findall(r"^FROM \S+ AS (\S+)$", file.read(), re.M))


def check_images(where, template):
    for container in template["spec"]["containers"] + template["spec"].get("initContainers", []):
        found = re.search(r"(?:^|/)ballast-([a-z-]+):[0-9][^:]*$", container["image"])
        assert found, (where, container["image"])
        assert found.group(1) in image_targets(), f"{where}: deploy/docker makes no {container['image']}"


@functools.lru_cache
def takes(program, *arguments):
    """What is said of the arguments; nothing where the program takes them."""
    done = subprocess.run([os.path.join(BIN, program), *arguments, "--version"], capture_output=True, text=True,
                          env=dict(os.environ, BALLAST_MODULES="/nowhere"))
    return "" if done.returncode == 0 and done.stdout.startswith(program) else done.stderr or "no version"


def check_arguments(where, template):
    """The programs take the arguments they are given."""
    for container in template["spec"]["containers"]:
        assert "--log-format=json" in container["args"], (where, container["args"])
        if "command" in container:  # ballast-pair gives its own beside them
            continue
        program = PROGRAMS[container["name"]]
        refused = takes(program, *container["args"])
        assert not refused, (where, container["args"], refused)


def final_codes():
    """The exit codes that end a Job, of docs/exit-codes.md, which the programs write from their table."""
    with open(os.path.join(ROOT, "docs", "exit-codes.md")) as file:
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in file if re.match(r"\| \d", line)]
    found = [int(row[0]) for row in rows if row[-1] == "failed"]
    assert found and len(rows) > len(found) and rows[0][0] == "0" and rows[0][-1] == "done", rows
    return found


def check_failure_policy(where, spec):
    """What does not get better by trying again ends the Job, and nothing else does."""
    rules, final = spec["podFailurePolicy"]["rules"], final_codes()
    fails = [rule["onExitCodes"] for rule in rules if rule["action"] == "FailJob" and "onExitCodes" in rule]
    pod = spec["template"]["spec"]
    assert fails == [{"containerName": container["name"], "operator": "In", "values": final}
                     for container in pod["containers"] + pod["initContainers"]], (where, fails, final)
    for rule in rules:
        if rule["action"] == "Count":
            assert rule["onExitCodes"] == {"containerName": "driver", "operator": "NotIn", "values": [0, *final]}, where


def table(heading):
    """The rows of the table below a heading of docs/kubernetes.md, as lists of cells."""
    with open(os.path.join(ROOT, "docs", "kubernetes.md")) as file:
        text = file.read().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def documented_ports():
    """The ports table: numbers by program."""
    found = {program: set() for program in PORTS}
    for numbers, programs, *_ in table("Ports"):
        for number, program in zip(numbers.split(", "), programs.split(", ") if ", " in programs else [programs] * 9):
            for name in PORTS if program == "all" else [program]:
                if number.isdigit() and name in found:
                    found[name].add(int(number))
    return found


def check_failures():
    """Every row of the failure matrix names tests, and they exist."""
    for event, *_, tests in table("What happens when"):
        named = re.findall(r"`(e2e|soak|deploy)/([a-z_]+)`", tests)
        assert named, f"{event}: tested by nothing"
        for kind, name in named:
            folder = "e2e" if kind == "e2e" else "deploy"  # of soak: those that are no longer versions of another
            assert os.path.exists(os.path.join(ROOT, "tests", folder, f"{name}_test.py")), f"{event}: there is no {kind}/{name}"


def check_documents():
    """docs/kubernetes.md says what the manifests do."""
    check_failures()
    assert documented_ports() == PORTS, documented_ports()
    pairs = {int(n) for row in table("Ports") if "pair-pod" in row[1] for n in row[0].split(", ")}
    assert pairs == PAIR_PORTS, pairs


def check_affinity(where, template, instance):
    """Pods of a run draw each other, and not those of another run."""
    terms = template["spec"].get("affinity", {}).get("podAffinity", {}).get("preferredDuringSchedulingIgnoredDuringExecution", [])
    for term in terms:
        labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert not instance or "app.kubernetes.io/instance" in labels, (where, labels)
    return len(terms)


def check_pods(where, documents, allowed, instance):
    for kind, name, template in pods(documents):
        at = f"{where}: {kind} {name}"
        check_security(at, template, allowed)
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        check_images(at, template)
        check_arguments(at, template)
        for container in template["spec"]["containers"]:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["grpc"]["port"] in PORTS[component], (at, probe)
            ports = {port["containerPort"] for port in container["ports"]}
            more = PAIR_PORTS if container.get("command") == ["/usr/bin/ballast-pair"] else set()
            assert ports == PORTS[component] | more, (at, ports)
            given = {int(n) for n in re.findall(r"-(?:listen|tcp)=[0-9.]+:(\d+)", " ".join(container["args"]))}
            assert not given or given == PORTS[component], (at, given)
        assert template["spec"]["terminationGracePeriodSeconds"] >= 30, at
        assert check_affinity(at, template, instance) > 0 or kind != "StatefulSet", at
    for document in documents:
        if document["kind"] == "Job":
            check_failure_policy(where, document["spec"])
        elif document["kind"] == "JobSet":
            for rule in document["spec"]["failurePolicy"]["rules"]:  # JobSet's webhook refuses others
                assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"]), (where, rule)
            (driver,) = (job for job in document["spec"]["replicatedJobs"] if job["name"] == "driver")
            check_failure_policy(where, driver["template"]["spec"])


def check_labels(where, documents, instance):
    for document in documents:
        at = f"{where}: {document['kind']} {document['metadata']['name']}"
        assert document["kind"] in NAMESPACED, at
        assert "namespace" not in document["metadata"], at
        labels = document["metadata"].get("labels", {})
        for key in ("name", "part-of", "version") + (("instance",) if instance else ()):
            assert f"app.kubernetes.io/{key}" in labels, (at, key)
        if document["kind"] == "StatefulSet":
            selector = document["spec"]["selector"]["matchLabels"]
            assert "app.kubernetes.io/version" not in selector, at  # selectors cannot change, versions do
            assert selector.items() <= document["spec"]["template"]["metadata"]["labels"].items(), at


def check_job(where, documents):
    """The addresses in the job are those of pods of this rendering, and pods of a pair follow each other."""
    maps = [d for d in documents if d["kind"] == "ConfigMap"]
    job = yaml.safe_load(maps[0]["data"]["job.yaml"])
    mounted = [v["configMap"]["name"] for _, _, t in pods(documents) for v in t["spec"]["volumes"] if "configMap" in v]
    assert mounted == [maps[0]["metadata"]["name"]], (where, mounted)
    names = set()
    for document in documents:
        if document["kind"] == "StatefulSet":
            for i in range(document["spec"]["replicas"]):
                names.add(f"{document['metadata']['name']}-{i}.{document['spec']['serviceName']}")
        elif document["kind"] == "JobSet":
            for part in document["spec"]["replicatedJobs"]:
                name = document["metadata"]["name"]
                names.update(f"{name}-{part['name']}-0-{i}.{name}" for i in range(part["template"]["spec"]["completions"]))
    addresses, stages = job["services"]["stages"], job["pipeline"]["stages"]
    tensor, data = (job.get("parallel", {}).get(name, 1) for name in ("tensor", "data"))
    assert len(addresses) == stages * tensor * data, where
    for address in addresses + job["services"]["stores"] + job["services"].get("host_stores", []):
        assert address.rsplit(":", 1)[0] in names, f"{where}: no pod is called {address}"
    index = [int(re.search(r"-(\d+)\.", address).group(1)) for address in addresses]
    last, together = stages - 1, 2 * tensor  # pods of a pair
    for rank, pod in enumerate(index):  # replica by replica, in each stage by stage, tensor rank by tensor rank
        stage, tensor_rank = rank // tensor % stages, rank % tensor
        partner = index[rank + (last - 2 * stage) * tensor]
        first = rank // (tensor * stages) * tensor * stages
        assert (pod - first) // together == (partner - first) // together or pod == partner, (where, addresses)
        if len(set(index)) == len(index):
            expected = 2 * stage if 2 * stage < stages else 2 * (last - stage) + 1
            assert pod == first + expected * tensor + tensor_rank, (where, rank, pod)


def need_schemas():
    if importlib.util.find_spec("kubernetes_validate") is None:
        skip("schemas: no kubernetes-validate")


def jobs_of(documents):
    """The jobs that a JobSet is made of, which Kubernetes knows."""
    for document in documents:
        if document["kind"] == "JobSet":
            for job in document["spec"]["replicatedJobs"]:
                yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}


def check_schemas(where, documents, versions=KUBERNETES):
    import kubernetes_validate
    checked = [d for d in documents if d["apiVersion"] in BUILT_IN] + list(jobs_of(documents))
    assert checked, where
    for version in versions:
        for document in checked:
            kubernetes_validate.validate(document, version, strict=True)
    print(f"ok schemas of {' and '.join(versions)}: {where}: {len(checked)} objects; of other kinds "
          f"{sum(d['apiVersion'] not in BUILT_IN for d in documents)}")


def check_budgets(where, documents):
    """A budget with maxUnavailable is of pods whose controller has a scale; of other pods, a Job's, it lets none go."""
    scaled = [d["spec"]["template"]["metadata"]["labels"].items() for d in documents if d["kind"] == "StatefulSet"]
    for document in documents:
        if document["kind"] == "PodDisruptionBudget":
            wanted = document["spec"]["selector"]["matchLabels"].items()
            assert any(wanted <= labels for labels in scaled), f"{where}: {document['metadata']['name']} is of no StatefulSet"


def check(where, documents, instance=True, job=True, allowed=frozenset()):
    check_labels(where, documents, instance)
    check_pods(where, documents, allowed, instance)
    check_budgets(where, documents)
    if job:
        check_job(where, documents)
    print(f"ok {where}: {len(documents)} objects")
