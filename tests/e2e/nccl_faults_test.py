# SPDX-License-Identifier: Apache-2.0
"""Stages whose tensors go by NCCL (the device of tests/late, the NCCL of tests/fake_gpu) when something of it fails: a
transfer that stands still costs one attempt and the communicators of that pair, and nobody else's; a stage killed in the
middle of a send ends the run with the cause, other pairs stay as they are, and it goes on from its checkpoint."""
import json
import os
import re
import subprocess
import time

from ballast import (CTL, ROOT, assert_nothing_left, environment, losses, read_report, run_job, scratch,
                     shared_memory_files, skip, small_inline, stages, wait_until, write_job)

BUILD = os.path.dirname(os.environ.get("BALLAST_BIN", os.path.join(ROOT, "build", "bin")).rstrip("/"))
LATE = os.path.join(BUILD, "tests", "late")
NCCL = ("--set", "pipeline.device=cuda", "--set", "balance.data_path=nccl")
CHOSEN = "nccl: both ends have NCCL 2.28.9"


def on(services):
    return ["--set", "services.stages=[" + ", ".join(f'"{service.address}"' for service in services) + "]"]


class Run:
    """A run on stage services that lasts a while, with faults to plant in them."""

    def __init__(self, folder, job, *arguments):
        self.report = os.path.join(folder, f"report-{time.monotonic_ns()}.jsonl")
        self.errors = self.report + ".txt"
        with open(self.errors, "w") as file:
            self.process = subprocess.Popen([CTL, "run", job, "--report", self.report, *NCCL, *arguments], stderr=file,
                                            env=environment(folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def steps(self):
        try:
            with open(self.report, "rb") as file:
                lines = file.read().split(b"\n")[:-1]  # whole ones
            return sum(json.loads(line)["event"] == "step" for line in lines)
        except OSError:
            return 0

    def reach(self, step):
        wait_until(lambda: self.steps() >= step or self.process.poll() is not None, 120, f"step {step}")
        assert self.process.poll() is None, self.words()

    def end(self, expect):
        code = self.process.wait(180)
        assert code == expect, f"exit code {code}, expected {expect}\n{self.words()}"
        return self.words()

    def words(self):
        with open(self.errors) as file:
            return file.read()


def plant(faults, service, what):
    open(os.path.join(faults, f"{service.pid}.{what}"), "w").close()


def standing_still(folder, faults, services):
    job = write_job(folder, "long.yaml", model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 40, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4})
    expected, _ = run_job(folder, job, "--local")
    run = Run(folder, job, *on(services))
    run.reach(3)
    plant(faults, services[1], "stall")
    run.end(0)
    assert losses(read_report(run.report)) == losses(expected), "other bits after a transfer stood still"
    assert not os.listdir(faults), "no transfer stood still"
    again = [len(re.findall(f"{CHOSEN}.*made again", service.log())) for service in services]
    causes = [service.log() for service in services if "was not over after" in service.log()]
    words = "\n".join(service.log()[-3000:] for service in services)
    pair = r"NCCL, stage (1 to stage [02]|[02] to stage 1): a transfer of "
    assert causes and all(re.search(pair, log) for log in causes), words
    assert sum(again) == 2 and again[1] == 1 and again[3] == 0, f"stage 1 and one neighbour: {again}\n{words}"
    print(f"ok a transfer that stands still: communicators made again by stages {[i for i in range(4) if again[i]]}")


def killed(folder, faults, services):
    job = write_job(folder, "kept.yaml", model=small_inline(hidden=32, seq=32), data={"train": [__file__], "format": "text"},
                    train={"steps": 30, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4},
                    checkpoint={"folder": os.path.join(folder, "kept"), "every": 2})
    expected, _ = run_job(folder, job, "--local", "--set", "checkpoint.folder=null", "--set", "checkpoint.every=0")
    run = Run(folder, job, *on(services))
    run.reach(5)
    before = [len(service.log()) for service in services]
    plant(faults, services[1], "kill")
    words = run.end(5)
    assert "stage 1" in words and services[1].address in words, words
    assert services[1].process.wait(60) == -9
    for i, name in ((0, "stage 1"), (2, "stage 1")):  # its neighbours know at once, and why
        wait_until(lambda: f"link to {name} ended: {name} closed the connection" in services[i].log()[before[i]:], 60,
                   services[i].log())
    assert "link to stage 2" not in services[3].log()[before[3]:], "the pair of stages 2 and 3 was disturbed"
    os.unlink(os.path.join(folder, "ballast", f"stage-{services[1].pid}.data"))  # nobody else can
    committed = read_report(run.report)
    services[1].__init__(folder, "stage-service", "--listen", services[1].address, "--nccl-shared-gpu")
    rest = Run(folder, job, *on(services), "--resume")
    rest.end(0)
    bits = [(event["loss"].hex(), event["grad_norm"].hex()) for event in read_report(rest.report) if event["event"] == "step"]
    assert bits == losses(expected)[-len(bits):], "other bits after the run went on"
    assert losses(committed) == losses(expected)[:len(losses(committed))]
    print(f"ok a stage killed in the middle of a send: exit 5, gone on with {len(bits)} steps to go")


def main():
    if not os.path.exists(os.path.join(LATE, "libballast-cuda.so")):
        skip("tests/late is not built")
    shared = shared_memory_files()
    os.environ["BALLAST_MODULES"] = LATE
    with scratch() as folder:
        faults = os.path.join(folder, "faults")
        os.mkdir(faults)
        os.environ["LATE_NCCL_FAULTS"] = faults
        with stages(folder, 4, prefixes=[((), "127.0.0.1:0", "--nccl-shared-gpu")] * 4) as services:
            standing_still(folder, faults, services)
            killed(folder, faults, services)
        assert_nothing_left(folder, [], shared)


main()
