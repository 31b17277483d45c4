#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Containers against plain processes on one machine: the same job, programs and certificates, four stages and four stores over
tcp with mutual TLS, in turns, and the median of step times of each.

On an idle machine, as root:

    BALLAST_IMAGES=FOLDER tools/bench/containers.py [flags]

- processes on the loopback interface, which has no network below it;
- processes in network namespaces on a bridge: the network that containers have, and nothing else of them;
- containers (read-only roots, memory limits, nobody's user, seccomp) on a network of podman's.

The third against the second is what containers cost, the second against the first what a bridge costs. FOLDER holds the
images (tests/deploy/images_test.py makes them); the programs in them are those measured on all sides."""
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import spread, tell  # noqa: E402

for folder in ("deploy", "e2e"):
    sys.path.insert(0, os.path.join(measuring.ROOT, "tests", folder))
import ballast  # noqa: E402
import images_test as images  # noqa: E402
import podman  # noqa: E402
from hosts import Hosts  # noqa: E402

STAGES = images.STAGES
FIRST = 5  # steps that are left out: connections and caches


def take_programs(folder):
    """The programs of the tools image, to be run outside of it."""
    name = f"{images.NAME}-programs"
    images.run("podman", "create", "--name", name, "localhost/ballast-tools:test")
    try:
        for program in ("stage-service", "activation-store", "ballast-driver", "ballastctl"):
            images.run("podman", "cp", f"{name}:/usr/bin/{program}", os.path.join(folder, program))
    finally:
        images.run("podman", "rm", "-f", name)
    return folder


def write_job(path, steps, stages, stores):
    with open(path, "w") as file:
        file.write(images.JOB.format(steps=steps).replace("hidden: 128, heads: 4", "hidden: 512, heads: 8")
                   .replace("policy: bpipe", "policy: bpipe, data_path: tcp"))
        file.write(f"services: {{stages: [{', '.join(stages)}], stores: [{', '.join(stores)}]}}\n")


def median_seconds(report):
    with open(report) as file:
        steps = [event["seconds"] for event in map(json.loads, file) if event["event"] == "step"]
    return statistics.median(steps[FIRST:])


def tls(folder, role):
    return [f"--tls-{key}={folder}/{role}/{file}" for key, file in
            (("ca", "ca.pem"), ("certificate", "own.pem"), ("key", "own.key"))]


def run_processes(folder, name, steps, addresses, prefixes):
    """Services at these addresses, each behind its prefix (the last is the client's); the median time of a step."""
    with contextlib.ExitStack() as stack:
        def start(at, program, *arguments):
            service = ballast.Service(folder, program, "--listen", addresses[at], *arguments, prefix=prefixes[at])
            stack.callback(service.kill)
            return service.address
        stages = [start(i, "stage-service", *tls(folder, "stage")) for i in range(STAGES)]
        stores = [start(STAGES + i, "activation-store", "--capacity", "64 MiB", "--drain", "0", "--data-listen",
                        f"unix:{folder}/store-{i}.data", *tls(folder, "store")) for i in range(STAGES)]
        job, report = os.path.join(folder, f"{name}.yaml"), os.path.join(folder, f"{name}.jsonl")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(report)
        write_job(job, steps, stages, stores)
        images.run(*prefixes[-1], os.path.join(ballast.BIN, "ballastctl"), "run", job, "--report", report,
                   *tls(folder, "driver"), env=ballast.environment(folder))
        return median_seconds(report)


def by_processes(folder, steps):
    return run_processes(folder, "processes", steps, ["127.0.0.1:0"] * 2 * STAGES, [()] * (2 * STAGES + 1))


def by_namespaces(folder, steps):
    with Hosts(2 * STAGES + 1) as hosts:
        return run_processes(folder, "namespaces", steps, [f"{hosts.address(i)}:7700" for i in range(2 * STAGES)],
                             [hosts.prefix(i) for i in range(2 * STAGES + 1)])


def by_containers(folder, steps):
    work = os.path.join(folder, "work")
    write_job(os.path.join(work, "job.yaml"), steps, [f"stage-{i}:7700" for i in range(STAGES)],
              [f"store-{i}:7800" for i in range(STAGES)])
    report = os.path.join(work, "report.jsonl")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(report)
    with images.network():
        for i in range(STAGES):
            images.start_stage(i, folder)
            images.start_store(i, folder)
        images.start("client", "tools", "run", "/work/job.yaml", *images.TLS, "--report", "/work/report.jsonl", folder=folder,
                     role="driver")
        code = images.exit_code("client")
        assert code == 0, images.logs("client")[-3000:]
    return median_seconds(report)


def main():
    flags = measuring.parser(__doc__)
    measuring.add_rounds(flags, 7, "--pairs")
    flags.add_argument("--steps", type=measuring.count(FIRST + 1), default=30, metavar="N",
                       help=f"of a run, the first {FIRST} of which do not count (default 30)")
    options = flags.parse_args()
    if "BALLAST_IMAGES" not in os.environ or os.geteuid() != 0 or shutil.which("podman") is None:
        sys.exit("containers.py: needs root, podman, and BALLAST_IMAGES")
    podman.set_up(os.environ["BALLAST_IMAGES"])
    with tempfile.TemporaryDirectory(prefix="ballast-containers-") as folder:
        os.chmod(folder, 0o755)
        os.makedirs(os.path.join(folder, "work"))
        os.chmod(os.path.join(folder, "work"), 0o777)
        os.mkdir(os.path.join(folder, "programs"))
        ballast.BIN = take_programs(os.path.join(folder, "programs"))
        images.make_certificates(folder)
        ways, rounds = (by_processes, by_namespaces, by_containers), []
        for i in range(options.rounds):
            turn = i % len(ways)
            found = {way: way(folder, options.steps) for way in ways[turn:] + ways[:turn]}
            rounds.append([found[way] for way in ways])
            plain, bridged, contained = rounds[-1]
            tell(f"round {i + 1} of {options.rounds}: processes {plain * 1e3:.2f} ms, in namespaces {bridged * 1e3:.2f} ms, "
                 f"containers {contained * 1e3:.2f} ms a step: {contained / plain:.3f} of processes, {contained / bridged:.3f} of "
                 "those in namespaces")
    for what, ratios in (("containers of processes", [c / a for a, _, c in rounds]),
                         ("containers of processes on such a network", [c / b for _, b, c in rounds]),
                         ("processes on such a network of processes", [b / a for a, b, _ in rounds])):
        print(f"step time, {what}: {statistics.median(ratios):.3f} ({spread(ratios)})")
    print(f"medians of {len(rounds)} rounds, {options.steps - FIRST} steps each, "
          f"{subprocess.run(['nproc'], capture_output=True, text=True).stdout.strip()} cores")


if __name__ == "__main__":
    main()
