# SPDX-License-Identifier: Apache-2.0
"""deploy/compose: the file names what it uses, every service is as locked down as a pod, images have tags, programs take
the arguments they are given, ports are those of docs/kubernetes.md, its job names services that exist and is one that
ballastctl plans, so do the one of replicas, which differs in nothing else, and the one with a store of the host, what Prometheus and Grafana are told fits together; docker compose, where there is one, accepts it
(podman-compose runs it: images_test.py)."""
import json
import os
import re
import shutil
import subprocess

from manifests import BIN, PORTS, PROGRAMS, ROOT, takes, yaml

FOLDER = os.path.join(ROOT, "deploy", "compose")


def check_service(name, service, kind):
    for key, value in {"read_only": True, "cap_drop": ["ALL"], "user": "65532:65532"}.items():
        assert service[key] == value, (name, key)
    assert service["security_opt"] == ["no-new-privileges:true"] and "mem_limit" in service, name
    assert service["image"] == f"ballast-{kind}:0.1.0" and service["build"]["target"] == kind, name
    refused = takes(PROGRAMS[kind], *service["command"])
    assert not refused, (name, refused)
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


def read(name):
    with open(os.path.join(FOLDER, name)) as file:
        return yaml.safe_load(file)


def check_watch(services):
    """What Grafana is told fits together: sources and dashboards are where it looks for them, the source is the Prometheus
    beside it, the folder of dashboards holds ours, and every panel of it asks the source that one chooses."""
    mounted = dict(reversed(volume.split(":")[:2]) for volume in services["grafana"]["volumes"])
    assert mounted["/etc/grafana/provisioning/datasources/ballast.yaml"] == "./grafana.yaml", mounted
    assert mounted["/etc/grafana/provisioning/dashboards/ballast.yaml"] == "./dashboards.yaml", mounted
    (source,) = read("grafana.yaml")["datasources"]
    host, port = re.fullmatch(r"http://([^:/]+):(\d+)", source["url"]).groups()
    assert source["type"] == "prometheus" and source["isDefault"] and services[host]["image"].startswith("docker.io/prom/"), source
    assert port in [ports.rsplit(":", 1)[1] for ports in services[host]["ports"]], (source, services[host]["ports"])
    (provider,) = read("dashboards.yaml")["providers"]
    boards = [path for target, path in mounted.items() if os.path.dirname(target) == provider["options"]["path"]]
    assert provider["type"] == "file" and boards, (provider, mounted)
    for path in boards:
        with open(os.path.join(FOLDER, path)) as file:
            board = json.load(file)
        variables = {variable["name"]: variable for variable in board["templating"]["list"]}
        assert variables["source"]["type"] == "datasource" and variables["source"]["query"] == source["type"], variables
        asked = [panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"]
        assert board["title"] and asked and set(asked) == {"${source}"}, asked
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["watch"] and all(p.startswith("127.0.0.1:") for p in services[name]["ports"]), name


def check_job(name, kinds):
    job = read(name)
    for key, kind, port in (("stages", "stage", 7700), ("stores", "store", 7800)):
        if key in job["services"]:
            assert job["services"][key] == [f"{name}:{port}" for name in kinds[kind]], key
    done = subprocess.run([os.path.join(BIN, "ballastctl"), "simulate", os.path.join(FOLDER, name)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return job


def check_replicas(driver, kinds):
    """Over the others: the driver with another job, which is of the same services and stands where it says."""
    (other,) = read("replicas.yaml")["services"].values()
    changed = [(a, b) for a, b in zip(driver["command"], other["command"], strict=True) if a != b]
    ((_, path),) = changed
    assert path.startswith("--job="), changed
    (source,) = [volume.split(":")[0] for volume in driver["volumes"] if volume.split(":")[1] == path.removeprefix("--job=")]
    job = check_job(os.path.basename(source), kinds)
    assert job["parallel"]["data"] * job["pipeline"]["stages"] == len(kinds["stage"]), job


def check_host(driver, kinds):
    """Over the others: a store of the host, as locked down as the others and with the memory that the job says it lends, and
    the driver with a job that names it."""
    services = read("host.yaml")["services"]
    assert set(services) == {"host-store", "driver"}, services
    store, over = services["host-store"], services["driver"]
    check_service("host-store", store, "store")
    assert store["hostname"] == "host-store" and store["restart"] == "on-failure:20" and over["depends_on"] == ["host-store"]
    changed = [b for a, b in zip(driver["command"], over["command"], strict=True) if a != b]
    assert changed == ["--job=/etc/ballast/host-job.yaml"], changed
    assert over["volumes"] == ["./host-job.yaml:/etc/ballast/host-job.yaml:ro"], over
    job = check_job("host-job.yaml", kinds)
    assert job["services"]["host_stores"] == ["host-store:7800"], job
    assert f"--capacity={job['balance']['host']}" in store["command"], (job["balance"], store["command"])
    assert store["mem_limit"] == "384m" and job["balance"] == {"policy": "offload", "host": "256 MiB"}, store


def main():
    document = read("compose.yaml")
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
    assert "stores" in check_job("job.yaml", kinds)["services"]
    check_replicas(services["driver"], kinds)
    check_host(services["driver"], kinds)
    scraped = [t for s in read("prometheus.yaml")["scrape_configs"] for c in s["static_configs"] for t in c["targets"]]
    assert scraped == [f"{name}:9600" for names in kinds.values() for name in names], scraped
    check_watch(services)
    program = accepted()
    print(f"ok deploy/compose: {len(services)} services, {f'{program} reads it' if program else 'read by no compose program'}")


main()
