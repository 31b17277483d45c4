# SPDX-License-Identifier: Apache-2.0
"""Whole jobs with the object code of the CUDA modules on a CUDA that is none and strict (tests/fake_cuda): memory of devices,
streams, events, products and kernels of every stage and store break no rule of the driver, and nothing is left at the end.
Tensors between stages go by cuda-ipc, memory of one process that another one's copy engine reads.
Nothing is computed, so losses mean nothing."""
import os
import re
import signal

from ballast import BUILD, ON_DEVICE, Service, on, run_job, scratch, skip, write_job

MODULES = os.path.join(BUILD, "tests", "fake_cuda")


def older_cudnn(folder, model, train):
    """A cuDNN that is older than the module was built with costs flash attention its kernels, and nothing else."""
    for attention in ("naive", "flash"):
        job = write_job(folder, model=model, train={**train, "dtype": "bf16"}, pipeline={"stages": 1, "attention": attention})
        os.environ["FAKE_CUDNN_VERSION"] = "90100"
        _, done = run_job(folder, job, "--local", "--verbose", *ON_DEVICE)
        del os.environ["FAKE_CUDNN_VERSION"]
        assert "fake CUDA:" not in done.stderr, done.stderr
        said = "cuDNN 9.1 is loaded, Ballast was built with" in done.stderr
        assert said == (attention == "flash"), done.stderr
    print("ok older cuDNN")


def another_algorithm(folder, model, train):
    """Two stages whose cuBLASLt chooses otherwise for the same shapes: it is said, with both choices, and the run goes on."""
    job = write_job(folder, model=model, train={**train, "dtype": "bf16"}, pipeline={"stages": 2})
    for algorithms in (("1", "1"), ("1", "7")):
        services = []
        try:
            for algorithm in algorithms:
                os.environ["FAKE_CUBLASLT_ALGORITHM"] = algorithm
                services.append(Service(folder, "stage-service", "--listen", "127.0.0.1:0"))
                del os.environ["FAKE_CUBLASLT_ALGORITHM"]
            _, done = run_job(folder, job, "--verbose", *on(services), *ON_DEVICE)
            said = re.findall(r"products (\d+ x \d+ x \d+ [NT][NT] bf16.*) are made otherwise on stage 1 .*"
                              r"\(algorithm 7 tile .*\) than on stage 0 .*\(algorithm 1 tile .*\): their bits may differ", done.stderr)
            more = re.findall(r"and (\d+) more products are made otherwise", done.stderr)
            assert (len(said) == 4 and len(more) == 1) == (algorithms[1] == "7"), done.stderr
            assert len(set(said)) == len(said) and (said or not more), said
        finally:
            for service in services:
                service.kill(signal.SIGKILL)
    print("ok another algorithm")


def memory_by_name(folder, model, train):
    """A driver that gives no descriptors of memory: its names travel, for tensors and blocks."""
    job = write_job(folder, model=model, train=train, pipeline={"stages": 4}, balance={"policy": "bpipe", "require": "cuda-ipc"})
    os.environ["FAKE_CUDA_NO_DESCRIPTORS"] = "1"
    report, done = run_job(folder, job, "--local", "--verbose", *ON_DEVICE)
    del os.environ["FAKE_CUDA_NO_DESCRIPTORS"]
    assert "fake CUDA:" not in done.stderr, done.stderr
    assert re.search("link to stage 1 is up, cuda-ipc: same machine, legacy handles of memory", done.stderr), done.stderr[-3000:]
    assert report[-1]["stages"][0]["evicted"] > 0, report[-1]
    print("ok memory by name")


def main():
    if not os.path.exists(os.path.join(MODULES, "libballast-cuda-compute.so")):
        skip("tests/fake_cuda is not built: there is no CUDA toolkit with cuBLASLt and cuDNN")
    os.environ["BALLAST_MODULES"] = MODULES
    inline = {"init": None, "family": "gpt2", "layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 64}
    llama = {**inline, "family": "llama", "ffn": 128, "tied": False}
    train = {"steps": 3, "micro_batch": 1, "micro_batches": 8}
    parks = {"policy": "bpipe", "require": "cuda-ipc"}
    with scratch() as folder:
        for what, model, pipeline, balance, more, *parts in (
                ("one stage", inline, {"stages": 1}, {}, {}),
                ("four parts, parked", {**inline, "vocab": 301}, {"stages": 4}, parks, {"dtype": "bf16"}, 4),
                ("llama, bf16, zb-h1", llama, {"stages": 2, "schedule": "zb-h1"}, {}, {"dtype": "bf16"}),
                ("full recomputation", inline, {"stages": 2, "recompute": "full"}, {}, {}),
                ("flash", inline, {"stages": 2, "attention": "flash", "recompute": "attention"}, {}, {}),
                ("an optimizer on the host", inline, {"stages": 2}, {}, {"optimizer_memory": "host", "dtype": "bf16"}),
                ("post-validation", inline, {"stages": 2}, {}, {"post_validation": True, "clip": 1.0}),
                ("parked by cuda-ipc", inline, {"stages": 4}, parks, {}),
                ("slices, parked", inline, {"stages": 4, "schedule": "seq1f1b", "slices": 4}, parks, {}),
                ("slices, flash, bf16", llama, {"stages": 2, "schedule": "zb-h1", "slices": 2, "attention": "flash"}, {},
                 {"dtype": "bf16"}),
                ("chunks in a V", inline, {"stages": 2, "schedule": "zb-v"}, {}, {}),
                ("parked by shm", inline, {"stages": 4}, {"policy": "bpipe", "data_path": "shm"}, {})):
            job = write_job(folder, model=model, train={**train, **more}, pipeline=pipeline, balance=balance,
                            parallel={"tensor_parts": parts[0] if parts else 1})
            report, done = run_job(folder, job, "--local", "--verbose", *ON_DEVICE)
            broken = [line for line in done.stderr.splitlines() if "fake CUDA:" in line]
            assert not broken, f"{what}:\n" + "\n".join(broken[:20])
            by_ipc = "cuda-ipc: same machine" in done.stderr
            assert by_ipc == (pipeline["stages"] > 1 and "data_path" not in balance), f"{what}:\n{done.stderr[-3000:]}"
            if balance:
                stage = report[-1]["stages"][0]
                assert stage["evicted"] > 0 and stage["recomputed"] == 0, f"{what}: {stage}"
            print(f"ok {what}")
        memory_by_name(folder, inline, train)
        older_cudnn(folder, inline, train)
        another_algorithm(folder, inline, train)


main()
