# SPDX-License-Identifier: Apache-2.0
"""deploy/docker/pair.sh, the command of the pair-pod, with two pods of five programs each as two hosts: its stages know
which ones they should be; a run that requires shared memory for its blocks goes over it inside a pod and over tcp between
pods, with mutual TLS by the certificates of stages and of stores, with the bits of a local run, and preflight agrees; offload goes to the host store of the own pod; SIGTERM ends all with 0; where one program dies the others
end and its code is the script's. Skipped where network namespaces cannot be made."""
import json
import os
import signal
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from ballast import BIN, CTL, alive, descendants, environment, losses, program_of, read_report, run_job, scratch, \
    small_inline, wait_until, write_job  # noqa: E402
from hosts import Hosts  # noqa: E402


def secrets(folder):
    """A folder per role with the names that cert-manager gives to files of a secret."""
    made = os.path.join(folder, "authority")
    subprocess.run([os.path.join(ROOT, "deploy", "certificates.sh"), made], check=True, stderr=subprocess.DEVNULL)
    for role in ("stage", "store", "driver"):
        os.mkdir(os.path.join(folder, role))
        for source, name in (("ca.pem", "ca.crt"), (f"{role}.pem", "tls.crt"), (f"{role}.key", "tls.key")):
            os.symlink(os.path.join(made, source), os.path.join(folder, role, name))


def tls(folder, role):
    return [f"--tls-{key}={folder}/{role}/{name}" for key, name in
            (("ca", "ca.crt"), ("certificate", "tls.crt"), ("key", "tls.key"))]


class Pod:
    def __init__(self, folder, hosts, index):
        # A pod has folders of its own: sockets of one must not be seen by the other.
        self.folder = os.path.join(folder, f"pod-{index}-{os.urandom(2).hex()}")
        os.mkdir(self.folder, 0o700)
        self.log_path = os.path.join(self.folder, "log")
        self.address = hosts.address(index)
        values = dict(environment(self.folder), PATH=f"{BIN}:{os.environ['PATH']}", POD_IP=self.address,
                      POD_NAME=f"run-stage-{index}", STORE_CAPACITY="64 MiB", HOST_CAPACITY="64 MiB", STORE_TLS=os.path.join(folder, "store"))
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen([*hosts.prefix(index), os.path.join(ROOT, "deploy", "docker", "pair.sh"),
                                             *tls(folder, "stage"), "--log-format=text"], env=values, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self):
        with open(self.log_path) as file:
            return file.read()

    def programs(self):
        found = [(program_of(pid), pid) for pid in descendants(self.process.pid)]
        return sorted((name, pid) for name, pid in found if name in ("stage-service", "activation-store"))

    def wait_ready(self):
        wait_until(lambda: self.log().count("serving on") == 5, 60, f"the pod does not serve: {self.log()}")
        assert [name for name, _ in self.programs()] == ["activation-store"] * 3 + ["stage-service"] * 2, self.programs()

    def end(self, number=signal.SIGTERM):
        pids = [pid for _, pid in self.programs()]
        self.process.send_signal(number)
        code = self.process.wait(60)
        wait_until(lambda: not any(alive(pid) for pid in pids), 60, "programs of a pod outlive it")
        return code

    def kill(self):
        for pid in [pid for _, pid in self.programs()] + [self.process.pid]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def write(folder, hosts, slots=3, **more):
    return write_job(folder, model=small_inline(hidden=32, layers=4, seq=32),
                     train={"steps": 6, "micro_batch": 1, "micro_batches": 8}, pipeline={"stages": 4}, memory={"slots": slots},
                     balance={"policy": "bpipe", **more.pop("balance", {})}, **more)


def offload(folder, hosts, pods, services, expected):
    """Stages 0 and 3 are one pod, 1 and 2 the other: stage 0 parks at the first one's host store, stage 1 at the other's."""
    addresses = [f"{pod.address}:7820" for pod in pods]
    job = write(folder, hosts, name="offload.yaml", services={**services, "host_stores": addresses}, slots=2,
                balance={"policy": "offload", "mode": "fewest", "host": "64MiB", "require": "shm"})
    done = subprocess.run([*hosts.prefix(0), CTL, "preflight", job, *tls(folder, "driver"), "--timeout", "60", "-o", "json"],
                          env=environment(folder), text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["check"], row["subject"]): row for row in json.loads(done.stdout)}
    for stage, host in ((0, 0), (1, 1)):
        assert rows["path", f"stage {stage} to host store {host}"]["says"].startswith("shm"), rows
        assert rows["machine", f"host store {host}"]["state"] == "ok", rows
    report = os.path.join(folder, "offload.jsonl")
    done = subprocess.run([*hosts.prefix(0), CTL, "run", job, *tls(folder, "driver"), "--report", report],
                          env=environment(folder), text=True, capture_output=True, timeout=240, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr + pods[0].log()
    read = read_report(report)
    assert losses(read) == expected, "offload in pods gives other bits than one machine"
    for event in (event for event in read if event["event"] == "step"):
        assert [store["lent_slots"] for store in event["stores"] if "host" in store] == [3, 2], event["stores"]
        assert all(store["peak_leased"] > 0 for store in event["stores"] if "host" in store), event["stores"]
    print("ok offload: each pod has its own host store")


def main():
    with scratch() as folder, Hosts(2) as hosts:
        secrets(folder)
        reference, _ = run_job(folder, write(folder, hosts), "--local")
        pods = [Pod(folder, hosts, index) for index in range(2)]
        try:
            for pod in pods:
                pod.wait_ready()
            a, b = (pod.address for pod in pods)
            services = {"stages": [f"{a}:7700", f"{b}:7700", f"{b}:7710", f"{a}:7710"],
                        "stores": [f"{a}:7800", f"{b}:7800", f"{b}:7810", f"{a}:7810"]}
            job = write(folder, hosts, services=services, balance={"require": "shm"})
            done = subprocess.run([*hosts.prefix(0), CTL, "preflight", job, *tls(folder, "driver"), "--timeout", "60", "-o", "json"],
                                  env=environment(folder), text=True, capture_output=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr
            rows = {(row["check"], row["subject"]): row["says"] for row in json.loads(done.stdout)}
            assert rows["path", "stage 0 to store 3"].startswith("shm"), rows
            assert rows["path", "stage 0 to stage 1"].startswith("tcp") and \
                "encrypted" in rows["path", "stage 0 to stage 1"], rows
            assert rows["path", "stage 0 to stage 3"].startswith("shm"), rows  # the tied embedding's two ends
            for stage, pod in enumerate((0, 2, 3, 1)):
                assert rows["pod", f"stage {stage}"].startswith(f"pod {pod},"), rows
            report = os.path.join(folder, "report.jsonl")
            done = subprocess.run([*hosts.prefix(0), CTL, "run", job, *tls(folder, "driver"), "--report", report],
                                  env=environment(folder), text=True, capture_output=True, timeout=240,
                                  stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr + pods[0].log()
            assert losses(read_report(report)) == losses(reference), "pods of pairs give other bits than one machine"
            assert "pod 1 of 4 is stage 3; its partner, stage 0, is pod 0" in pods[0].log(), pods[0].log()
            assert "pod 3 of 4 is stage 2; its partner, stage 1, is pod 2" in pods[1].log(), pods[1].log()
            print("ok two pods of pairs: shared memory inside, tcp between, the bits of one machine")
            offload(folder, hosts, pods, services, losses(reference))
            assert pods[0].end() == 0, pods[0].log()
            print("ok SIGTERM ends all, exit code 0")
            victim = next(pid for name, pid in pods[1].programs() if name == "activation-store")
            others = [pid for _, pid in pods[1].programs()]
            os.kill(victim, signal.SIGKILL)
            assert pods[1].process.wait(60) == 128 + signal.SIGKILL, pods[1].log()
            assert not any(alive(pid) for pid in others), "a program outlives its pod"
            print("ok one that dies ends its pod, with its code")
        finally:
            for pod in pods:
                pod.kill()


main()
