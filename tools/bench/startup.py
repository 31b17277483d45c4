# SPDX-License-Identifier: Apache-2.0
"""Figures of a local run: seconds from the start of ballastctl to the first step, processor time of all its processes
until that step was committed, and how much memory each stage takes above its ready state, against its plan.

Memory is RssAnon + RssShmem of /proc/PID/status, before the driver configures the stage and after two steps. Pages of
a neighbour's edge buffers (and of the other end's tied gradients) that are mapped here count as resident too; they are
that neighbour's plan, so what /proc/PID/smaps says of memfds that this process maps read-only is taken off. The plan
is what the stage answers to Configure, as `ballastctl stages -o json` prints it. Standard library only.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import measuring  # noqa: E402
from measuring import tell  # noqa: E402

LIMIT_S = 300

JOB = {  # about 240 MB planned on two stages
    "name": "startup",
    "model": {"family": "gpt2", "layers": 4, "hidden": 384, "heads": 6, "vocab": 256, "seq": 256},
    "data": {"train": [os.path.abspath(__file__)], "format": "text"},
    "train": {"steps": 1000000, "micro_batch": 1, "micro_batches": 4},
    "pipeline": {"stages": 2, "schedule": "1f1b"},
}


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def mapped_of_peers_bytes(pid):
    """Resident pages of memfds that are mapped read-only: arenas of other stages."""
    total, counts = 0, False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and not words[0].endswith(":"):
                counts = words[1].startswith("r--s") and "memfd:" in line
            elif counts and words[0] == "Rss:":
                total += int(words[1]) * 1024
    return total


def children(parent):
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(pid) for pid in file.read().split()]


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user mode and in the kernel


def stage_processes(parent):
    found = {}
    for pid in children(parent):
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            words = line.read().decode().split("\0")
        if os.path.basename(words[0]) == "stage-service":
            found[int(words[words.index("--listen") + 1].rsplit("-", 1)[1])] = pid
    return found


def wait_for(what, run, condition):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end and run.poll() is None:
        try:
            value = condition()
        except (OSError, ValueError, IndexError):
            value = None
        if value:
            return value
        time.sleep(0.002)
    sys.exit(f"startup.py: {what} did not come within {LIMIT_S} s" if run.poll() is None else
             f"startup.py: the run ended with exit code {run.returncode} before {what}: {run.args}")


def idle_bytes(binaries, environment, folder):
    """A stage that serves and has not been configured."""
    reading, writing = os.pipe()
    stage = subprocess.Popen([f"{binaries}/stage-service", "--listen", f"unix:{folder}/idle", "--ready-fd",
                              str(writing)], pass_fds=[writing], env=environment, stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as ready:
        ready.readline()
    value = resident_bytes(stage.pid)
    stage.terminate()
    stage.wait()
    return value


def plan_of(binaries, environment):
    """The stages of the run, once the driver has looked at all of them."""
    status = subprocess.check_output([f"{binaries}/ballastctl", "status", "-o", "json"], env=environment)
    stages = json.loads(status)["stages"]
    return stages if all(sum(stage["memory"].values()) > 0 for stage in stages) else None


def run_once(binaries, job, sets, folder):
    environment = dict(os.environ, XDG_RUNTIME_DIR=folder)
    report = os.path.join(folder, "report.jsonl")
    before = idle_bytes(binaries, environment, folder)
    start = time.monotonic()
    run = subprocess.Popen([f"{binaries}/ballastctl", "run", job, "--local", "--report", report, *sets],
                           env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("the first step", run, lambda: os.path.getsize(report) > 0)
        seconds = time.monotonic() - start
        processor = sum(processor_seconds(pid) for pid in (run.pid, *children(run.pid)))
        with open(report) as file:
            of_step = json.loads(file.readline())["seconds"]
        wait_for("the third step", run, lambda: len(open(report).readlines()) >= 3)
        plan = wait_for("the plan", run, lambda: plan_of(binaries, environment))
        stages = []
        for number, pid in sorted(stage_processes(run.pid).items()):
            planned = sum(plan[number]["memory"].values())
            stages.append((number, resident_bytes(pid) - before - mapped_of_peers_bytes(pid), planned))
    finally:
        run.terminate()
        run.wait(LIMIT_S)
    os.unlink(report)
    return seconds - of_step, seconds, processor, stages


def main():
    flags = measuring.parser(__doc__)
    flags.add_argument("--bin", default=measuring.BIN, metavar="FOLDER",
                       help="where the programs are (default $BALLAST_BIN, else build/bin)")
    measuring.add_rounds(flags, 5, "--runs")
    flags.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the job; may be repeated")
    flags.add_argument("job", nargs="?", metavar="JOB.yaml",
                       help="a job of many steps; without it one of about 240 MB on two stages")
    arguments = flags.parse_args()
    for what, path in (("--bin", os.path.join(arguments.bin, "ballastctl")), ("JOB.yaml", arguments.job)):
        if path is not None and not os.path.exists(path):
            flags.error(f"{what}: {path} is not there")
    with tempfile.TemporaryDirectory(prefix="ballast-startup-") as folder:
        os.chmod(folder, 0o700)
        job = arguments.job or os.path.join(folder, "job.yaml")
        if not arguments.job:
            with open(job, "w") as file:
                json.dump(JOB, file)
        runs, sets = [], [word for pair in arguments.set for word in ("--set", pair)]
        for number in range(arguments.rounds):
            runs.append(run_once(os.path.abspath(arguments.bin), job, sets, folder))
            tell(f"round {number + 1} of {arguments.rounds}: {runs[-1][0]:.2f} s to the first step")
    for what, times in (("to the first step", [run[0] for run in runs]), ("to its commit", [run[1] for run in runs])):
        print(f"start {what}: median {statistics.median(times):.2f} s, worst {max(times):.2f} s of {len(times)} runs")
    print(f"processor time of all processes until then: median {statistics.median(run[2] for run in runs):.2f} s")
    print("stage   planned MB   taken MB   taken / planned")
    for number, taken, planned in runs[-1][3]:
        print(f"{number:5}   {planned / 1e6:10.1f}   {taken / 1e6:8.1f}   {taken / planned:15.3f}")


if __name__ == "__main__":
    main()
