# SPDX-License-Identifier: Apache-2.0
"""ballastctl preflight of a job for GPUs, on fake ones (tests/fake_gpu) that stages and stores each see as their containers
would: which GPU each stage has, that tensor ranks have one each, whose memory it can read directly and why not the others',
one version of NCCL in all of them or the stages that differ, and blocks sent from GPU to GPU, or through memory of the
host, where balance.require says whether that will do."""
import contextlib
import json
import os
import signal
import subprocess

from ballast import BIN, CTL, GOLDEN, Service, environment, scratch, small_inline, write_job

STAGES = 4
FAKE = os.path.join(os.path.dirname(BIN.rstrip("/")), "tests", "fake_gpu")
ALL = {"FAKE_GPU_COUNT": str(STAGES), "FAKE_NCCL_VERSION": "22809"}


@contextlib.contextmanager
def seeing(**variables):
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Pods:
    """Stages and stores; device i is the machine's GPU i."""

    def __init__(self, folder):
        self.folder = folder
        self.stages = [self.stage(**ALL) for _ in range(STAGES)]
        with seeing(BALLAST_MODULES=FAKE, **ALL):
            self.stores = [Service(folder, "activation-store", "--listen", f"unix:{folder}/store-{i}", "--capacity",
                                   "64 MiB", "--spill", "1 MiB", "--drain", "0", "--device", f"cuda:{i}") for i in range(STAGES)]

    def stage(self, **variables):
        with seeing(BALLAST_MODULES=FAKE, **variables):
            return Service(self.folder, "stage-service", "--listen", "127.0.0.1:0")

    def replace(self, i, **variables):
        self.stages[i].kill(signal.SIGKILL)
        self.stages[i] = self.stage(**variables)

    def end(self):
        for service in (*self.stages, *self.stores):
            service.kill(signal.SIGKILL)

    def preflight(self, job, *arguments):
        """Rows by check, without those that have to do with the machine that the test runs on."""
        names = [argument for key, services in (("stages", self.stages), ("stores", self.stores))
                 for argument in ("--set", f"services.{key}=[" + ", ".join(f'"{s.address}"' for s in services) + "]")]
        done = subprocess.run([CTL, "preflight", job, "-o", "json", "--timeout", "60", *names, *arguments],
                              env=environment(self.folder), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=240)
        assert done.returncode in (0, 9), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        rows = [row for row in json.loads(done.stdout) if row["check"] != "shared memory"]
        assert done.returncode == 9 or all(row["state"] != "failed" for row in rows), rows
        return rows


def of(rows, check):
    return {row["subject"]: (row["state"], row["says"]) for row in rows if row["check"] == check}


def failed(rows):
    return [(row["check"], row["subject"]) for row in rows if row["state"] == "failed"]


def all_see_all(pods, job):
    rows = pods.preflight(job)
    assert failed(rows) == [], rows
    assert all(f"cuda: {STAGES} devices" in says for _, says in of(rows, "gpu").values()), rows
    assert of(rows, "peer access") == {
        f"stage {i}": ("ok", "reads memory of stages " + ", ".join(str(d) for d in range(STAGES) if d != i))
        for i in range(STAGES)}, rows
    assert of(rows, "nccl") == {"all stages": ("ok", "NCCL 2.28.9")}, rows
    assert of(rows, "path")["stage 0 to store 3"][1].startswith("cuda-ipc: same machine;"), rows
    for asked in ("balance.require=cuda-ipc", "balance.data_path=cuda-ipc"):
        rows = pods.preflight(job, "--set", asked)
        assert failed(rows) == [], (asked, [row for row in rows if row["state"] == "failed"])
    print("ok all stages see all GPUs")


def another_nccl(pods, job):
    pods.replace(2, **{**ALL, "FAKE_NCCL_VERSION": "22703"})
    rows = pods.preflight(job)
    assert failed(rows) == [("nccl", "stage 2")], rows
    assert of(rows, "nccl")["stage 2"][1] == "it has NCCL 2.27.3, stage 0 has 2.28.9: run all stages from one image", rows
    pods.replace(2, **ALL, FAKE_NCCL_MISSING="1")
    rows = pods.preflight(job)
    assert failed(rows) == [("nccl", "stage 2")] and "it has no NCCL" in of(rows, "nccl")["stage 2"][1], rows
    pods.replace(2, **ALL)
    print("ok a stage with another NCCL, or none")


def one_gpu_each(pods, job):
    """As the device plugin gives them out: memory of the others cannot be read, and blocks go through the host's."""
    pods.replace(0, **{**ALL, "FAKE_GPU_COUNT": "1", "FAKE_GPU_FIRST": "0"})
    rows = pods.preflight(job)
    assert failed(rows) == [], rows
    assert of(rows, "peer access")["stage 0"][1] == \
        "not of stages 1, 2, 3: this process sees 1 GPUs, and not that one", rows
    assert of(rows, "peer access")["stage 1"][1] == "reads memory of stages 0, 2, 3", rows
    says = of(rows, "path")["stage 0 to store 3"][1]
    assert says.startswith("shm, through memory of the host: ") and "not seen here" in says, rows
    rows = pods.preflight(job, "--set", "balance.require=cuda-ipc")
    assert ("peer access", "stage 0") in failed(rows) and ("path", "stage 0 to store 3") in failed(rows), rows
    assert {subject for check, subject in failed(rows) if check == "peer access"} == {"stage 0"}, rows
    assert "--pairing pod" in of(rows, "peer access")["stage 0"][1], rows
    rows = pods.preflight(job, "--set", "balance.data_path=cuda-ipc")
    assert ("peer access", "stage 0") in failed(rows), rows
    assert "Tensors go between it and stage 1, and balance.data_path is cuda-ipc" in of(rows, "peer access")["stage 0"][1], rows
    pods.replace(0, **ALL)
    print("ok a stage that sees its own GPU alone")


def no_way(pods, job):
    """A machine without peer access between two GPUs, and memory that is not handed out."""
    pods.replace(1, **ALL, FAKE_GPU_ALONE="1")
    pods.replace(2, **ALL, FAKE_GPU_CLOSED="1")
    rows = pods.preflight(job)
    assert failed(rows) == [], rows
    access = of(rows, "peer access")
    assert access["stage 1"][1].startswith("not of stages 0: the machine has no peer access between fake GPUs 1 and 0; "
                                           "not of 2: this fake GPU keeps its memory"), rows
    assert access["stage 0"][1] == "reads memory of stages 1, 3; not of 2: this fake GPU keeps its memory", rows
    print("ok GPUs without a way between them")


def tensor_ranks_on_one_gpu(pods, job):
    """NCCL takes one rank of a group on a GPU."""
    tensor = ("--set", "pipeline.stages=2", "--set", "parallel.tensor=2", "--set", "balance.policy=none")
    rows = pods.preflight(job, *tensor)
    assert failed(rows) == [], rows
    pods.replace(3, **{**ALL, "FAKE_GPU_COUNT": "1", "FAKE_GPU_FIRST": "2"})
    rows = pods.preflight(job, *tensor)
    pair = {"tensor rank 0 of stage 1", "tensor rank 1 of stage 1"}
    assert set(failed(rows)) == {("gpu", rank) for rank in pair}, rows
    assert "tensor rank 0 of stage 1 is on the same GPU" in of(rows, "gpu")["tensor rank 1 of stage 1"][1], rows
    rows = pods.preflight(job)  # stages may share one
    assert not any(check == "gpu" for check, _ in failed(rows)), rows
    pods.replace(3, **ALL)
    print("ok tensor ranks on one GPU")


def main():
    with scratch() as folder:
        job = write_job(folder, model=small_inline(hidden=32, layers=STAGES, seq=16),
                        data={"train": f"{GOLDEN}/gpt2/tokens.bin"},
                        train={"steps": 3, "micro_batch": 1, "micro_batches": 16},
                        pipeline={"stages": STAGES, "device": "cuda"}, memory={"slots": 3}, balance={"policy": "bpipe"})
        pods = Pods(folder)
        try:
            all_see_all(pods, job)
            another_nccl(pods, job)
            one_gpu_each(pods, job)
            tensor_ranks_on_one_gpu(pods, job)
            no_way(pods, job)
        finally:
            pods.end()


if __name__ == "__main__":
    main()
