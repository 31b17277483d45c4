# SPDX-License-Identifier: Apache-2.0
"""What happens to services in a cluster, with processes and mutual TLS, a driver that is started again as a Kubernetes Job
would, and checkpoints; in the end the weights and the optimizer's state are those of an undisturbed local run, bit for bit.
The run has no end of its own until the job is changed, so that it does not matter how fast it is:

- a node is drained: SIGTERM to a stage and the store beside it; both come back elsewhere in time, and the run goes on from
  the newest checkpoint;
- certificates are renewed while the run goes on: a driver that is killed after that meets the others with new ones;
- images are upgraded: SIGTERM to the driver, which writes a checkpoint; stages and stores end; programs of another folder
  take their places, and no step is lost;
- the job is changed, to end soon: SIGTERM to the driver, and one with the changed job goes on from there on the same
  stages."""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess

import ballast
from ballast import CTL, ROOT, Service, environment, run_job, scratch, small_inline, state_of, wait_until, write_job

STAGES, EVERY, MORE = 4, 10, 30
ENDLESS = 900000


def own_host():
    """An address of the loopback interface that no other process of this machine has: a service that is away finds its
    port free when it comes back."""
    pid = os.getpid()
    return f"127.{64 + (pid >> 16) % 128}.{pid >> 8 & 255}.{pid & 255}"


def certificates(folder):
    subprocess.run([os.path.join(ROOT, "deploy", "certificates.sh"), folder], check=True, stderr=subprocess.DEVNULL)


class World:
    def __init__(self, folder):
        self.folder, self.tls, self.programs = folder, os.path.join(folder, "tls"), ballast.BIN
        certificates(self.tls)
        host = own_host()
        self.stage_at = [f"{host}:{7700 + i}" for i in range(STAGES)]
        self.store_at = [f"{host}:{7800 + i}" for i in range(STAGES)]
        self.driver_at = f"{host}:7600"
        self.stages, self.stores, self.driver = [None] * STAGES, [None] * STAGES, None
        self.drivers = []  # all there were

    def flags(self, role):
        return [f"--tls-ca={self.tls}/ca.pem", f"--tls-certificate={self.tls}/{role}.pem", f"--tls-key={self.tls}/{role}.key"]

    def start(self, program, *arguments):
        before, ballast.BIN = ballast.BIN, self.programs
        try:
            return Service(self.folder, program, *arguments)
        finally:
            ballast.BIN = before

    def start_node(self, i):
        self.stages[i] = self.start("stage-service", "--listen", self.stage_at[i], *self.flags("stage"))
        self.stores[i] = self.start("activation-store", "--listen", self.store_at[i], "--capacity", "64 MiB", "--drain", "2",
                                    *self.flags("store"))

    def start_driver(self, job):
        self.driver = self.start("ballast-driver", "--job", job, "--listen", self.driver_at, "--resume", *self.flags("driver"))
        self.drivers.append(self.driver)

    def ask(self):
        """The step that the driver says it is at; None while it does not answer."""
        assert self.driver.process.poll() is None, f"the driver ended: {self.logs()}"
        done = subprocess.run([CTL, "status", "--endpoint", self.driver_at, "-o", "json", "--timeout", "20",
                               *self.flags("operator")], env=environment(self.folder), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout)["step"] if done.returncode == 0 else None

    def step(self):
        return wait_until(lambda: self.ask() or None, 120, "the driver tells no step")

    def wait_step(self, step):
        try:
            wait_until(lambda: (self.ask() or 0) >= step, 120, f"step {step} was not reached")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.logs()}") from error

    def expect_end(self, services, code):
        for service in services:
            got = service.process.wait(120)
            assert got == code, f"{service.log_path}: exit code {got}, not {code}: {self.logs()}"

    def logs(self):
        """The ends of all there are, for a failure."""
        services = [*self.drivers, *filter(None, self.stages), *filter(None, self.stores)]
        return "\n".join(f"{service.log_path}:\n{service.log()[-2000:]}" for service in services)

    def taken_up(self, i):
        """Files are looked at when somebody connects, once per second at most: perhaps not when the new driver came."""
        if "was read again" not in self.stages[i].log():
            host, port = self.stage_at[i].split(":")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 10) as plain, \
                    ssl.create_default_context(cafile=f"{self.tls}/ca.pem").wrap_socket(plain, server_hostname="stage.ballast"):
                pass
        return "was read again" in self.stages[i].log()

    def end(self):
        for service in [*self.stages, *self.stores, *self.drivers]:
            if service is not None and service.process.poll() is None:
                service.kill(signal.SIGKILL)


def newest(folder):
    return max(int(re.search(r"step-(\d+)$", path).group(1)) for path in glob.glob(os.path.join(folder, "step-??????")))


def job_of(folder, name, kept, steps, **more):
    sections = {"model": small_inline(hidden=48, layers=STAGES, seq=48), "pipeline": {"stages": STAGES},
                "train": {"steps": steps, "micro_batch": 1, "micro_batches": 8}, "memory": {"slots": 3},
                "balance": {"policy": "bpipe"}, "checkpoint": {"folder": kept, "every": EVERY}, **more}
    return write_job(folder, name, **sections)


def drain_node(world, job, kept):
    world.wait_step(EVERY + 2)
    wait_until(lambda: glob.glob(os.path.join(kept, "step-??????")), 60, "no checkpoint was finished" + world.logs())
    for service in (world.stages[1], world.stores[1]):
        service.process.send_signal(signal.SIGTERM)
    world.expect_end([world.driver], 5)
    world.expect_end([world.stages[1], world.stores[1]], 0)
    world.start_node(1)
    world.start_driver(job)
    world.wait_step(2 * EVERY)
    wait_until(lambda: re.search("all stages (re)?start from", world.driver.log()), 60,
               "the driver did not begin at a checkpoint" + world.logs())
    print("ok a node was drained: the driver ended with 5, its successor went on from the checkpoint")


def renew_certificates(world, job):
    certificates(world.tls)
    world.wait_step(world.step() + 3)  # connections stay
    world.driver.kill(signal.SIGKILL)
    world.start_driver(job)
    world.wait_step(4 * EVERY)
    wait_until(lambda: "going on" in world.driver.log(), 60, "the driver did not go on with what the stages have")
    wait_until(lambda: all(world.taken_up(i) for i in range(STAGES)), 60, "stages did not take up the new certificates")
    print("ok certificates were renewed in a run, and a driver was replaced after that")


def stop_driver(world, kept):
    """An orderly end; the step of its checkpoint."""
    committed = world.step()
    world.driver.process.send_signal(signal.SIGTERM)
    world.expect_end([world.driver], 130)
    step = newest(kept)
    assert step >= committed, f"the checkpoint of the orderly end is of step {step}, {committed} were committed before it: " \
        f"{world.driver.log()[-3000:]}"
    return step


def upgrade(world, job, kept):
    step = stop_driver(world, kept)
    for service in [*world.stages, *world.stores]:
        service.process.send_signal(signal.SIGTERM)
    world.expect_end([*world.stages, *world.stores], 0)
    new = os.path.join(world.folder, "new")
    os.mkdir(new)
    for program in ("stage-service", "activation-store", "ballast-driver"):
        shutil.copy(os.path.join(ballast.BIN, program), new)
    modules = os.path.join(os.path.dirname(ballast.BIN), "lib")
    if os.path.isdir(modules):
        os.symlink(modules, os.path.join(world.folder, "lib"))
    world.programs = new
    for i in range(STAGES):
        world.start_node(i)
    world.start_driver(job)
    world.wait_step(step + 1)
    print(f"ok programs were replaced after step {step}; the next step was {step + 1}")


def change_job(world, folder, kept, services):
    step = stop_driver(world, kept)
    changed = job_of(folder, "changed.json", kept, step + MORE, services=services, balance={"policy": "cap", "cap": 3},
                     memory={"slots": None})
    world.start_driver(changed)
    world.expect_end([world.driver], 0)
    print(f"ok the job was changed after step {step}, and ran to its end")
    return step + MORE


def main():
    with scratch() as folder:
        local, kept = os.path.join(folder, "local"), os.path.join(folder, "kept")
        world = World(folder)
        services = {"stages": world.stage_at, "stores": world.store_at, "driver": world.driver_at}
        job = job_of(folder, "job.json", kept, ENDLESS, services=services)
        try:
            for i in range(STAGES):
                world.start_node(i)
            world.start_driver(job)
            drain_node(world, job, kept)
            renew_certificates(world, job)
            upgrade(world, job, kept)
            steps = change_job(world, folder, kept, services)
        finally:
            world.end()
        run_job(folder, job_of(folder, "local.json", local, steps), "--local", timeout=600)
        expected, got = state_of(local, steps), state_of(kept, steps)
        assert set(got) == set(expected), (sorted(got), sorted(expected))
        wrong = [name for name in expected if got[name] != expected[name]]
        assert not wrong, f"other bits than an undisturbed run: {wrong}"
        print(f"ok step {steps}: weights and optimizer are those of an undisturbed run, {len(got)} files")


main()
