# SPDX-License-Identifier: Apache-2.0
"""The programs with the arguments that deploy/ gives them, on the jobs of deploy/ themselves: services of the base serve,
preflight passes and the driver ends with 0, for jobs with and without checkpoints, stores and host stores, without TLS and
with it. Of an argument only addresses and paths differ, of a job its number of steps and what this machine has not: GPUs, volumes."""
import glob
import json
import os
import subprocess
import sys

from manifests import ROOT, yaml

sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from ballast import BIN, CTL, Service, environment, scratch  # noqa: E402

KUBERNETES = os.path.join(ROOT, "deploy", "k8s")
COMPOSE = os.path.join(ROOT, "deploy", "compose")
TEXT = os.path.join(ROOT, "LICENSE")


def read(*path):
    with open(os.path.join(*path)) as file:
        return [document for document in yaml.safe_load_all(file) if document]


def pod(documents, kind):
    (document,) = (document for document in documents if document["kind"] == kind)
    return document["spec"]["template"]["spec"]


def local(arguments, job=None, secret=None):
    """The arguments, of a program of this machine."""
    changed = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if value.startswith("0.0.0.0") and ":" in value:
            value = "127.0.0.1:0"
        elif value.startswith("0.0.0.0") or value == "$(POD_IP)":
            value = "127.0.0.1"
        elif value.startswith("/etc/ballast/tls/"):
            value = os.path.join(secret, os.path.basename(value))
        elif value.startswith("/etc/ballast/"):
            value = job
        changed.append(f"{key}={value}" if value else job if key.startswith("/etc/ballast/") else key)
    return changed


def kubernetes():
    """What the base tells each program; JobSet tells them the same."""
    driver = pod(read(KUBERNETES, "base", "driver.yaml"), "Job")
    stage, store = (pod(read(KUBERNETES, "base", f"{name}.yaml"), "StatefulSet")["containers"][0]["args"]
                    for name in ("stage", "store"))
    found = {"stage": stage, "store": store, "driver": driver["containers"][0]["args"],
             "preflight": driver["initContainers"][0]["args"]}
    (jobset,) = read(KUBERNETES, "components", "jobset", "jobset.yaml")
    specs = [job["template"]["spec"]["template"]["spec"] for job in jobset["spec"]["replicatedJobs"]]
    for one in [one for spec in specs for one in spec["containers"] + spec.get("initContainers", [])]:
        assert one["args"] == found[one["name"]], (one["name"], one["args"], found[one["name"]])
    return found


def mutual(found):
    """The same with the component mtls."""
    changed = {name: list(arguments) for name, arguments in found.items()}
    for program in ("stage", "store", "driver"):
        for patch in read(KUBERNETES, "components", "mtls", f"{program}.yaml")[0]:
            parts = patch["path"].split("/")  # /spec/template/spec/containers/0/args/N
            arguments = changed[program if parts[4] == "containers" else "preflight"]
            if parts[6:7] == ["args"]:
                at = len(arguments) if parts[7] == "-" else int(parts[7])
                arguments[at:at + (patch["op"] == "replace")] = [patch["value"]]
    assert all("--plaintext" not in arguments for arguments in changed.values()), changed
    return changed


def secrets(folder):
    """A folder for each program, with the names that cert-manager gives to files of a secret."""
    made = os.path.join(folder, "authority")
    subprocess.run([os.path.join(ROOT, "deploy", "certificates.sh"), made], check=True, stderr=subprocess.DEVNULL)
    for role in ("stage", "store", "driver"):
        os.mkdir(os.path.join(folder, role))
        for source, name in (("ca.pem", "ca.crt"), (f"{role}.pem", "tls.crt"), (f"{role}.key", "tls.key")):
            os.symlink(os.path.join(made, source), os.path.join(folder, role, name))


def compose():
    services = read(COMPOSE, "compose.yaml")[0]["services"]
    ctl = services["ctl"]
    return {"stage": services["stage-0"]["command"], "store": services["store-0"]["command"],
            "driver": services["driver"]["command"], "preflight": ctl["entrypoint"][1:] + ctl["command"]}


def write(folder, path, ranks):
    """The job at these services, for two steps."""
    (job,) = read(path)
    for key, values in job["services"].items():
        if isinstance(values, list):
            assert len(values) <= len(ranks[key]), (path, key)
            job["services"][key] = [service.address for service in ranks[key][:len(values)]]
    job["services"]["driver"] = "127.0.0.1:7600"
    job["data"]["train"], job["train"]["steps"] = TEXT, 2
    job["train"]["lr"] = float(job["train"]["lr"])  # for PyYAML 2e-3 is a word
    job["pipeline"].pop("device", None)
    if "checkpoint" in job:
        job["checkpoint"]["folder"] = os.path.join(folder, os.path.basename(os.path.dirname(path)) + os.path.basename(path))
    copy = os.path.join(folder, "job.yaml")
    with open(copy, "w") as file:
        json.dump(job, file)
    return copy, job


def check(folder, path, arguments, ranks):
    copy, job = write(folder, path, ranks)
    for program, words in ((CTL, arguments["preflight"]), (os.path.join(BIN, "ballast-driver"), arguments["driver"])):
        done = subprocess.run([program, *local(words, copy, os.path.join(folder, "driver"))], env=environment(folder), stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, f"{path}: {program} {words}: {done.returncode}\n{done.stdout}{done.stderr}"
    saved = sorted(os.listdir(job["checkpoint"]["folder"])) if "checkpoint" in job else []
    assert ("step-000002" in saved) == ("checkpoint" in job), (path, saved)
    print(f"ok {os.path.relpath(path, ROOT)}, {'plaintext' if '--plaintext' in arguments['driver'] else 'TLS'}")


def main():
    base = f"{KUBERNETES}/base/job.yaml"
    sets = [(kubernetes(), sorted([base] + glob.glob(f"{KUBERNETES}/overlays/*/job.yaml"))), (mutual(kubernetes()), [base]),
            (compose(), sorted(glob.glob(f"{COMPOSE}/*job.yaml")))]
    jobs = [read(path)[0] for _, paths in sets for path in paths]
    for has in ("checkpoint" in job for job in jobs), ("stores" in job["services"] for job in jobs):
        assert set(has) == {False, True}, "the jobs of deploy/ have become alike"
    for arguments, paths in sets:
        with scratch() as folder:
            ranks = {"stages": [], "stores": [], "host_stores": []}
            secrets(folder)
            try:
                for key, program, count in (("stages", "stage-service", 4), ("stores", "activation-store", 4),
                                            ("host_stores", "activation-store", 1)):
                    kind = key.removeprefix("host_")[:-1]
                    words = read(COMPOSE, "host.yaml")[0]["services"]["host-store"]["command"] if key == "host_stores" else \
                        arguments[kind]
                    for _ in range(count):
                        ranks[key].append(Service(folder, program, *local(words, secret=os.path.join(folder, kind))))
                for path in paths:
                    check(folder, path, arguments, ranks)
            finally:
                for service in [service for services in ranks.values() for service in services]:
                    service.kill()


main()
