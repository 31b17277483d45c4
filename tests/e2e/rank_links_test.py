# SPDX-License-Identifier: Apache-2.0
"""Two replicas of two tensor ranks, each rank a host of its own: the link of one is cut in every phase of a step, while
weights are handed round, in a collective of a layer, while gradients are added up, at the commit and while a checkpoint is
written. A link that comes back within seconds costs no step: the run goes on. One that stays away ends the run with 5 within
LONGEST_S seconds, the message names the rank, the services live on, and the next run on them goes on from the last
checkpoint. Every step has the bits of a run that was never disturbed.

What the others wait for says in which phase the link was cut; where that phase has been had, or cannot be told, the link is
mended and another moment is tried. BALLAST_TEST_ROUNDS: so often every phase; 0: one of the long ones, and a checkpoint's.
Skipped where network namespaces cannot be made."""
import json
import os
import subprocess
import time

from ballast import CTL, LONGEST_S, Run, Service, environment, run_job, scratch, seed, small_inline, write_job
from hosts import Hosts
from phases import PHASES, phase_of, took

AFTER = 3  # steps after the last disturbance
RANKS, STAGE_PORT, DRIVER_PORT = 4, 7700, 7600


def name_of(rank):
    return f"tensor rank {rank % 2} of stage 0 of replica {rank // 2}"


class Cluster:
    """Stage services on hosts, which outlive runs; a driver and a client on host 0 for each run."""

    def __init__(self, folder, hosts, train, checkpoint):
        self.folder, self.hosts = folder, hosts
        self.stages = [Service(folder, "stage-service", "--plaintext", "--listen", f"{hosts.address(i)}:{STAGE_PORT}",
                               prefix=hosts.prefix(i)) for i in range(RANKS)]
        self.endpoint = f"{hosts.address(0)}:{DRIVER_PORT}"
        self.job = write_job(folder, "cluster.yaml", **shape(), train=train, checkpoint=checkpoint, services={
            "stages": [f"{hosts.address(i)}:{STAGE_PORT}" for i in range(RANKS)], "driver": self.endpoint,
            "plaintext": True})

    def begin(self, resume):
        more = ["--resume"] if resume else []
        driver = Service(self.folder, "ballast-driver", "--plaintext", "--listen", self.endpoint, "--job", self.job, *more,
                         prefix=self.hosts.prefix(0))
        return driver, Run(self.folder, self.job, "--plaintext", prefix=self.hosts.prefix(0))

    def told(self):
        done = subprocess.run([*self.hosts.prefix(0), CTL, "status", "--endpoint", self.endpoint, "--plaintext",
                               "-o", "json"],
                              env=environment(self.folder), stdin=subprocess.DEVNULL, text=True, capture_output=True,
                              timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def end(self):
        for service in self.stages:
            service.kill()


def shape():
    # Little work and large weights: a step is gathers, reductions and commits for the most part.
    return {"model": small_inline(hidden=64, layers=2, seq=8, vocab=8192),
            "data": {"train": [os.path.abspath(__file__)], "format": "text"}, "pipeline": {"stages": 1},
            "parallel": {"tensor": 2, "data": 2}}


def disturb(cluster, run, kept, choice, wanted):
    """Cuts the link of a rank in a phase that is wanted; the phase, the rank, when, and how often it was mended before."""
    mended = 0
    while True:
        made = len(run.steps())
        run.wait_for(lambda steps: len(steps) >= made + 2, "no steps, though all links are there")
        rank = choice.randrange(1, RANKS)
        time.sleep(choice.uniform(0, 0.2))
        begin = time.monotonic()
        cluster.hosts.cut(rank)
        phase = phase_of(cluster.told, kept, name_of(rank), begin, seconds=2)
        if phase in wanted:
            wanted.remove(phase)
            return phase, rank, begin, mended
        cluster.hosts.mend(rank)
        mended += 1


def one(cluster, kept, choice, wanted, seen):
    saved = os.path.isdir(kept) and any(name.startswith("step-") for name in os.listdir(kept))
    driver, run = cluster.begin(saved)
    try:
        phase, rank, begin, mended = disturb(cluster, run, kept, choice, wanted)
        message = run.end(5)
        seconds = time.monotonic() - begin
        cluster.hosts.mend(rank)
    finally:
        run.kill()
        driver.kill()
    assert name_of(rank) in message, f"{phase}: does not name {name_of(rank)}:\n{message[-3000:]}"
    assert seconds < LONGEST_S, f"{phase}: took {seconds:.1f} s"
    assert all(stage.process.poll() is None for stage in cluster.stages), "a stage service has ended"
    took(seen, run.steps())
    print(f"ok {phase}: {name_of(rank)} cut off in step {max(seen) + 1}: exit 5 after {seconds:.2f} s; {mended} cuts before "
          "were mended in time", flush=True)


def main():
    choice = seed()
    rounds = int(os.environ.get("BALLAST_TEST_ROUNDS", "0"))
    wanted = PHASES * rounds or [choice.choice(["gather", "layer", "reduction"]), "checkpoint"]
    with scratch() as folder, Hosts(RANKS) as hosts:
        kept = os.path.join(folder, "kept")
        train = {"steps": 1000000, "micro_batch": 1, "micro_batches": 4}
        cluster = Cluster(folder, hosts, train, {"folder": kept, "every": 5, "keep": 2})
        seen = {}
        try:
            while wanted:
                one(cluster, kept, choice, wanted, seen)
        finally:
            cluster.end()
        last = max(seen)
        alone = write_job(folder, "alone.yaml", **shape(), train=train)
        report, _ = run_job(folder, alone, "--local", "--steps", str(last + AFTER), timeout=300)
        took(seen, [event for event in report if event["event"] == "step"])
        print(f"ok {last} steps have the bits of a run that was not disturbed")


main()
