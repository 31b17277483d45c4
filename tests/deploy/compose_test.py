# SPDX-License-Identifier: Apache-2.0
"""deploy/compose: the file names what it uses, every service is as locked down as a pod, images have tags, programs take
the arguments they are given, ports are those of docs/kubernetes.md, its job names services that exist and is one that
ballastctl plans; docker compose, where there is one, accepts it (podman-compose runs it: images_test.py)."""
import os
import re
import shutil
import subprocess

from manifests import BIN, PORTS, PROGRAMS, ROOT, yaml

FOLDER = os.path.join(ROOT, "deploy", "compose")


def check_service(name, service, kind):
    for key, value in {"read_only": True, "cap_drop": ["ALL"], "user": "65532:65532"}.items():
        assert service[key] == value, (name, key)
    assert service["security_opt"] == ["no-new-privileges:true"] and "mem_limit" in service, name
    assert service["image"] == f"ballast-{kind}:0.1.0" and service["build"]["target"] == kind, name
    done = subprocess.run([os.path.join(BIN, PROGRAMS[kind]), *service["command"], "--version"], capture_output=True, text=True)
    assert done.returncode == 0, (name, done.stderr)
    given = {int(n) for n in re.findall(r"-(?:listen|tcp)=[0-9.]+:(\d+)", " ".join(service["command"]))}
    assert given == PORTS[kind], (name, given)


def accepted():
    """Whether docker compose reads the file; None where there is none."""
    command = ["docker", "compose"]
    if shutil.which(command[0]) is None or subprocess.run([*command, "version"], capture_output=True).returncode != 0:
        return None
    done = subprocess.run([*command, "-f", os.path.join(FOLDER, "compose.yaml"), "config"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(command)


def main():
    with open(os.path.join(FOLDER, "compose.yaml")) as file:
        document = yaml.safe_load(file)
    services = document["services"]
    kinds = {"stage": [], "store": [], "driver": []}
    for name, service in services.items():
        assert re.search(r":v?[0-9][^:]*$", service["image"]), (name, service["image"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert os.path.exists(os.path.join(FOLDER, source)) if source.startswith(".") else \
                source in document["volumes"], (name, volume)
        kind = re.sub(r"-\d+$", "", name)
        if kind in kinds:
            check_service(name, service, kind)
            kinds[kind].append(name)
            assert service["hostname"] == name  # by which it is found, and which a stage gives to others
    assert set(services["driver"]["depends_on"]) == set(kinds["stage"] + kinds["store"])
    with open(os.path.join(FOLDER, "job.yaml")) as file:
        job = yaml.safe_load(file)
    for key, kind, port in (("stages", "stage", 7700), ("stores", "store", 7800)):
        assert job["services"][key] == [f"{name}:{port}" for name in kinds[kind]], key
    done = subprocess.run([os.path.join(BIN, "ballastctl"), "simulate", os.path.join(FOLDER, "job.yaml")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(FOLDER, "prometheus.yaml")) as file:
        scraped = [t for s in yaml.safe_load(file)["scrape_configs"] for c in s["static_configs"] for t in c["targets"]]
    assert scraped == [f"{name}:9600" for names in kinds.values() for name in names], scraped
    program = accepted()
    print(f"ok deploy/compose: {len(services)} services, {f'{program} reads it' if program else 'read by no compose program'}")


main()
