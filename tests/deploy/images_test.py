# SPDX-License-Identifier: Apache-2.0
"""The images of deploy/docker, built with buildah on a base made by debootstrap, run by podman and runc on a network with
DNS names: sizes, users, labels, --version, no NVIDIA library; then four stages, four stores and a driver, each a container
with a read-only root and a memory limit that is no user of the machine, train over tcp with mutual TLS to the same losses as
`ballastctl run --local`, with a store, the driver, and then a stage (whose run goes on from its checkpoint) killed and
started again on the way; wrong, expired and missing certificates are refused. deploy/compose runs to its end, with its
Prometheus beside it, which answers every question of the dashboard. Needs root, debootstrap, buildah, podman, runc, netavark
and aardvark-dns; skips where they cannot run.

BALLAST_IMAGES=FOLDER keeps the storage there for the next run. How long starting and coming back may take is a verdict in
what is printed, and fails the test only with BALLAST_STRICT=1: a machine with other work on it is slow for reasons of its
own."""
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import tempfile
import time

from dashboard import check_dashboard, found
from podman import BASE, NAME, REVISION, ROOT, build, check_bill, check_common, inspect, run, run_once, skip, storage

BIN = os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin"))
TARGETS = ("store", "driver", "stage", "tools", "debug")
STAGES = 4
LIMIT_MB = 300
SECONDS = {"first step": 20, "leases again": 5, "driver": 5}  # what is asked for
JOB = """\
name: images
model: {{family: gpt2, layers: 4, hidden: 128, heads: 4, vocab: 256, seq: 128}}
data: {{train: /usr/share/common-licenses/GPL-3}}
train: {{steps: {steps}, micro_batch: 1, micro_batches: 8, lr: 1e-3}}
pipeline: {{stages: 4}}
memory: {{slots: 3}}
balance: {{policy: bpipe}}
"""


def verdict(what, seconds):
    """"ok" within the bound, else "BELOW", which fails only where BALLAST_STRICT=1 says that nobody else works here."""
    good = seconds <= SECONDS[what]
    assert good or os.environ.get("BALLAST_STRICT") != "1", f"{what}: {seconds:.1f} s, {SECONDS[what]} s asked"
    return f"{'ok' if good else 'BELOW'} ({SECONDS[what]} s asked)"


def check_image(target):
    check_common(build(target))
    size = int(inspect(target)["Size"]) / 1e6
    assert size < LIMIT_MB or target == "debug", f"{target}: {size:.0f} MB"
    check_bill(target)
    if target == "debug":
        version = run_once(target, "--version", entrypoint="/usr/bin/stage-service").stdout
        assert run_once(target, "--version", entrypoint="/usr/bin/gdb").stdout
    else:
        version = run_once(target, "--version").stdout
    first, *libraries = version.splitlines()
    assert f"({REVISION})" in first and {"grpc", "libuv", "openssl"} <= {line.split()[0] for line in libraries}, version
    found = run_once(target, "/usr/lib", "-name", "libcud*", "-o", "-name", "libnccl*", "-o", "-name", "libnvidia*",
                     entrypoint="/usr/bin/find").stdout
    assert found == "", f"NVIDIA libraries: {found}"
    print(f"ok image {target}: {size:.0f} MB, {first}: {', '.join(line.strip() for line in libraries)}", flush=True)


TLS = ("--tls-ca=/etc/ballast/tls/ca.pem", "--tls-certificate=/etc/ballast/tls/own.pem", "--tls-key=/etc/ballast/tls/own.key")


def start(name, image, *arguments, folder, role, memory="512m", options=()):
    run("podman", "run", "-d", "--name", f"{NAME}-{name}", "--hostname", name, "--network", NAME, "--network-alias", name,
        "--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp:size=64m", "--cap-drop", "all", "--security-opt",
        "no-new-privileges", "--memory", memory, "-v", f"{folder}/{role}:/etc/ballast/tls:ro", "-v",
        f"{folder}/work:/work:rw", *options, f"localhost/ballast-{image}:test", *arguments)


def logs(name):
    done = run("podman", "logs", f"{NAME}-{name}", check=False)
    return done.stdout + done.stderr


def start_stage(index, folder):
    start(f"stage-{index}", "stage", *TLS, "--listen=0.0.0.0:7700", "--health-listen=0.0.0.0:7701",
          "--metrics-listen=0.0.0.0:9600", "--data-listen=0.0.0.0", f"--data-advertise=stage-{index}", folder=folder,
          role="stage")


def start_store(index, folder):
    start(f"store-{index}", "store", *TLS, "--listen=0.0.0.0:7800", "--health-listen=0.0.0.0:7801",
          "--metrics-listen=0.0.0.0:9600", "--data-tcp=0.0.0.0:7802", "--capacity=64 MiB", folder=folder, role="store")


def start_driver(folder):
    start("driver", "driver", *TLS, "--listen=0.0.0.0:7600", "--health-listen=0.0.0.0:7601",
          "--metrics-listen=0.0.0.0:9600", "--job=/work/job.yaml", "--linger", "--resume", folder=folder, role="driver")


def start_client(name, folder, *more):
    start(name, "tools", "run", "/work/job.yaml", *TLS, "--report", "/work/report.jsonl", *more, folder=folder,
          role="operator")


def start_all(folder):
    """As a kubelet does: every pod at once, and in that of the driver its init container first. Seconds that it took."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        started = [pool.submit(one, i, folder) for i in range(STAGES) for one in (start_stage, start_store)]
        # Of the driver's pod: at its address, under its name.
        start("preflight", "tools", "preflight", "/work/job.yaml", *TLS, "--timeout=300", folder=folder, role="driver",
              memory="256m", options=("--network-alias", "driver"))
        for one in started:
            one.result()
    assert exit_code("preflight") == 0, logs("preflight")
    took = time.monotonic() - begin
    run("podman", "rm", f"{NAME}-preflight")
    start_driver(folder)
    return took


def make_certificates(folder):
    """A folder per role with ca.pem, own.pem and own.key, and three that must be refused."""
    script = os.path.join(ROOT, "deploy", "certificates.sh")
    roles = ("stage", "store", "driver", "operator")
    for authority, days in (("authority", 365), ("stranger", 365)):
        run("bash", script, os.path.join(folder, authority), "--days", str(days))
    expired = os.path.join(folder, "old")
    shutil.copytree(os.path.join(folder, "authority"), expired)
    run("bash", script, expired, "--days", "0", "operator")
    made = [(role, "authority", role) for role in roles]
    made += [("foreign", "stranger", "operator"), ("expired", "old", "operator")]
    for name, authority, role in made:
        os.mkdir(os.path.join(folder, name))
        for source, target in (("ca.pem", "ca.pem"), (f"{role}.pem", "own.pem"), (f"{role}.key", "own.key")):
            shutil.copy(os.path.join(folder, authority, source), os.path.join(folder, name, target))
            os.chmod(os.path.join(folder, name, target), 0o644)


def check_refusals(folder):
    """Who may not ask: a stage about policies, a stranger, somebody who has expired, somebody without a certificate."""
    wait_for_step(1)  # the driver answers those who may ask
    for role, arguments, command, words in (
            ("stage", TLS, ("policy", "set", "none"), "must be driver or operator"),
            ("foreign", TLS, ("status",), "issued by another authority"),
            ("expired", TLS, ("status",), "has expired on"),
            ("operator", ("--plaintext",), ("status",), "it speaks TLS there, and this program does not")):
        done = run("podman", "run", "--rm", "--network", NAME, "--read-only", "-v", f"{folder}/{role}:/etc/ballast/tls:ro",
                   "localhost/ballast-tools:test", *command, "--endpoint", "driver:7600", *arguments, check=False)
        assert done.returncode == 7 and words in done.stderr, (role, done.returncode, done.stdout, done.stderr)
        print(f"ok refused: {role}, {' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[:160]}", flush=True)


def losses(path):
    with open(path) as file:
        records = [json.loads(line) for line in file]
    return [(record["step"], record["loss"], record["grad_norm"]) for record in records if record["event"] == "step"]


@contextlib.contextmanager
def network():
    done = run("podman", "network", "create", NAME, check=False)
    if done.returncode != 0:
        skip(f"podman network: {done.stderr}")
    try:
        yield
    finally:
        names = run("podman", "ps", "-a", "--format", "{{.Names}}").stdout.split()
        for name in names:
            if name.startswith(NAME):
                run("podman", "rm", "-f", "-t", "1", name, check=False)
        run("podman", "network", "rm", "-f", NAME, check=False)


def status():
    """What the driver's container says of its run; None while it does not answer."""
    done = run("podman", "exec", f"{NAME}-tools", "/usr/bin/ballastctl", "status", "--endpoint", "driver:7600", *TLS, "-o",
               "json", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def wait_for_step(step, seconds=180):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        said = status()
        if said is not None and (said.get("step", 0) >= step or said.get("phase") == "finished"):
            return said
        assert said is None or said.get("phase") != "failed", said
        time.sleep(0.2)
    raise AssertionError(f"step {step} was not reached: {status()}\n{logs('driver')}")


def wait_for_leases(store):
    end = time.monotonic() + 180
    while time.monotonic() < end:
        done = run("podman", "exec", f"{NAME}-tools", "/usr/bin/ballastctl", "leases", "list", "--store", f"{store}:7800",
                   *TLS, "-o", "ndjson", check=False)
        if done.returncode == 0 and done.stdout:
            return
        time.sleep(0.1)
    raise AssertionError(f"no leases at {store}: {done.stdout}{done.stderr}\n{logs(store)}")


def check_preflight():
    """While the run goes on: names, certificates, clocks and data paths of the containers; room is taken by the run."""
    done = run("podman", "exec", f"{NAME}-tools", "/usr/bin/ballastctl", "preflight", "/work/job.yaml", *TLS, "-o", "json",
               "--timeout", "60", check=False)
    rows = json.loads(done.stdout)
    failed = [row for row in rows if row["state"] == "failed"]
    assert not failed, failed
    paths = {row["subject"]: row["says"] for row in rows if row["check"] == "path"}
    assert "encrypted" in paths["stage 0 to stage 1"] and paths["stage 0 to store 3"].startswith("tcp"), paths
    print(f"ok preflight: {len(rows)} checks; stage 0 to store 3: {paths['stage 0 to store 3']}", flush=True)


def stop_in_order(job):
    """SIGTERM to the driver: it writes a checkpoint and ends within what `render` prints, and the next one goes on there."""
    with tempfile.TemporaryDirectory(prefix="ballast-images-render-") as folder:
        said = run(os.path.join(BIN, "ballastctl"), "render", job, "--output", folder, "--name", "images").stdout
    grace = int(re.search(r"an orderly end takes (\d+) s at most", said).group(1))
    before = wait_for_step(300)["step"]
    begin = time.monotonic()
    run("podman", "stop", "-t", str(grace), f"{NAME}-driver")
    took = time.monotonic() - begin
    assert exit_code("driver") == 130, logs("driver")[-2000:]
    written = [int(n) for n in re.findall(r"checkpoint .*?step[- ](\d+)", logs("driver"))]
    assert written and written[-1] >= before and took < grace, (before, written, took, grace, logs("driver")[-2000:])
    assert exit_code("again") == 130, logs("again")[-2000:]
    print(f"ok an orderly stop wrote the checkpoint of step {written[-1]} and took {took:.1f} s of {grace} s", flush=True)
    run("podman", "start", f"{NAME}-driver")


def exit_code(name):
    return int(run("podman", "wait", f"{NAME}-{name}").stdout)


def check_run(folder, steps=800):
    work = os.path.join(folder, "work")
    os.makedirs(work)
    job = os.path.join(work, "job.yaml")
    local = os.path.join(folder, "local.jsonl")
    with open(job, "w") as file:
        file.write(JOB.format(steps=steps))
    run(os.path.join(BIN, "ballastctl"), "run", job, "--local", "--report", local)
    expected = losses(local)
    stages = ", ".join(f"stage-{i}:7700" for i in range(STAGES))
    stores = ", ".join(f"store-{i}:7800" for i in range(STAGES))
    with open(job, "a") as file:
        file.write("checkpoint: {folder: /work/checkpoints, every: 40}\n"
                   f"services: {{driver: driver:7600, stages: [{stages}], stores: [{stores}]}}\n")
    make_certificates(folder)
    os.chmod(folder, 0o755)
    os.chmod(work, 0o777)  # the containers are no user of this machine
    with network():
        start("tools", "tools", "3600", options=("--entrypoint", "/usr/bin/sleep"), folder=folder, role="operator")
        begin = time.monotonic()
        checked = start_all(folder)
        wait_for_step(1)
        took = time.monotonic() - begin
        print(f"{verdict('first step', took)} first step {took:.1f} s after the first container was started, {checked:.1f} s "
              "of it until preflight had ended", flush=True)
        start_client("client", folder)
        check_preflight()
        run("podman", "kill", f"{NAME}-store-3")
        said = wait_for_step(steps // 10)
        begin = time.monotonic()
        run("podman", "start", f"{NAME}-store-3")
        wait_for_leases("store-3")
        took = time.monotonic() - begin
        print(f"{verdict('leases again', took)} leases again {took:.1f} s after the killed store was started", flush=True)
        wait_for_step(said["step"] + 10)
        begin = time.monotonic()
        run("podman", "kill", f"{NAME}-driver")
        run("podman", "start", f"{NAME}-driver")
        said = wait_for_step(said["step"] + 11)
        took = time.monotonic() - begin
        print(f"{verdict('driver', took)} killed: a store, and at step {said['step']} the driver, whose successor went on "
              f"after {took:.1f} s", flush=True)
        run("podman", "kill", f"{NAME}-stage-1")
        codes = exit_code("client"), exit_code("driver")
        assert codes == (5, 5), f"exit codes {codes}: {logs('client')}\n{logs('driver')}"
        run("podman", "start", f"{NAME}-stage-1")
        run("podman", "start", f"{NAME}-driver")
        start_client("again", folder, "--resume")
        check_refusals(folder)
        stop_in_order(job)
        start_client("third", folder, "--resume")
        assert exit_code("third") == 0, logs("third") + logs("driver")
        got = losses(os.path.join(work, "report.jsonl"))
    assert {step for step, _, _ in got} == set(range(1, steps + 1)), "every step was committed"
    wrong = [record for record in got if record != expected[record[0] - 1]]
    assert not wrong, f"{len(wrong)} of {len(got)} records differ: {wrong[0]}, not {expected[wrong[0][0] - 1]}"
    print(f"ok {steps} steps in containers over tcp with TLS, a stage killed on the way: the losses of one machine", flush=True)


def stand_in(image):
    """Debian's Prometheus under the name of the image that compose asks for, which is not here."""
    with tempfile.TemporaryDirectory(prefix="ballast-prometheus-") as context:
        with open(os.path.join(context, "Dockerfile"), "w") as file:
            file.write(f"FROM {BASE}\nRUN apt-get update -q && apt-get install -q -y --no-install-recommends prometheus && "
                       "mkdir /prometheus && chown nobody /prometheus\nUSER nobody\nENTRYPOINT [\"/usr/bin/prometheus\"]\n"
                       'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]\n')
        run("buildah", "bud", "--layers", "--isolation", "chroot", "-t", image, context)


def check_compose():
    """deploy/compose by podman-compose, to the end of its run, watched by its Prometheus."""
    if shutil.which("podman-compose") is None:
        print("left out: deploy/compose: no podman-compose", flush=True)
        return
    for target in TARGETS:
        run("podman", "tag", f"localhost/ballast-{target}:test", f"localhost/ballast-{target}:0.1.0")
    path = os.path.join(ROOT, "deploy", "compose", "compose.yaml")
    with open(path) as file:
        stand_in(re.search(r"image: (docker\.io/prom/prometheus:\S+)", file.read()).group(1))
    compose = ("podman-compose", "-p", NAME, "-f", path)
    driver = f"{NAME}_driver_1"
    try:
        run(*compose, "up", "-d", "--no-build", "driver", "prometheus")
        said = json.loads(run("podman", "inspect", f"{NAME}_prometheus_1").stdout)[0]
        (network,) = said["NetworkSettings"]["Networks"].values()
        address = f"{network['IPAddress']}:9090"
        end = time.monotonic() + 120
        while not found(address, "ballast_run_step >= 3"):
            assert time.monotonic() < end, run("podman", "logs", f"{NAME}_prometheus_1", check=False).stderr[-3000:]
            time.sleep(0.5)
        check_dashboard(address)
        code = run("podman", "wait", driver, timeout=600).stdout.strip()
        said = run("podman", "logs", driver, check=False)
        assert code == "0" and "step=100" in said.stderr, f"exit code {code}: {said.stderr[-3000:]}"
        print("ok deploy/compose ran to its last step", flush=True)
    finally:
        run(*compose, "down", check=False)
        run("podman", "volume", "rm", "-f", f"{NAME}_checkpoints", check=False)
        run("podman", "network", "rm", "-f", f"{NAME}_default", check=False)


def main():
    with storage():
        for target in TARGETS:
            check_image(target)
        check_compose()
        with tempfile.TemporaryDirectory(prefix="ballast-images-job-") as job:
            check_run(job)


if __name__ == "__main__":
    main()
