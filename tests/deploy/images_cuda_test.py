# SPDX-License-Identifier: Apache-2.0
"""The images for GPUs (deploy/docker: store-cuda, stage-cuda, tools-cuda, debug-cuda), built with a CUDA toolkit that is a folder of
this machine, as far as a machine without a GPU goes: sizes, users, labels, libraries and their licences, no driver inside;
modules load, and programs that are asked for a GPU say that there is no driver, whatever else they can do. Needs what
images_test.py needs, and a toolkit with cuDNN and NCCL in BALLAST_CUDA_FOLDER or where nvcc is."""
import os
import shutil
import tempfile

from podman import build, check_bill, check_common, inspect, run_once, skip, storage

STORE = {"libnccl.so.2", "libballast-cuda.so"}
STAGE = STORE | {"libballast-cuda-compute.so", "libcublasLt.so.13", "libcudnn.so.9", "libcudnn_graph.so.9", "libnvrtc.so.13"}
JOB = """\
name: gpu
model: {family: gpt2, layers: 2, hidden: 32, heads: 2, vocab: 256, seq: 32}
data: {train: /usr/share/common-licenses/GPL-3}
train: {steps: 2, micro_batch: 1, micro_batches: 2}
pipeline: {stages: 2, device: cuda}
"""


def toolkit():
    folder = os.environ.get("BALLAST_CUDA_FOLDER")
    if folder is None and shutil.which("nvcc") is not None:
        folder = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc"))))
    if folder is None or not os.path.exists(os.path.join(folder, "include", "cudnn_backend.h")) \
            or not os.path.exists(os.path.join(folder, "include", "nccl.h")):
        skip("no CUDA toolkit with cuDNN and NCCL in one folder (BALLAST_CUDA_FOLDER)")
    return folder


def check_image(target, libraries, folder):
    check_common(build(target, "--build-arg", "CUDA_SOURCE=folder", "--build-context", f"cuda={folder}"))
    found = set(run_once(target, "/usr/lib", "-maxdepth", "1", "-name", "*.so*", "-printf", "%f\n",
                         entrypoint="/usr/bin/find").stdout.split())
    assert libraries <= found, f"{target}: {libraries - found} are missing"
    assert not any(name.startswith(("libcuda.", "libnvidia")) for name in found), f"{target}: a driver: {found}"
    for name in sorted(libraries):
        said = run_once(target, f"/usr/lib/{name}", entrypoint="/usr/bin/ldd").stdout
        assert "not found" not in said, f"{target}: {name}\n{said}"
    check_bill(target, {name.split(".so")[0] for name in libraries if not name.startswith("libballast")})
    licences = run_once(target, "/usr/share/doc/nvidia", entrypoint="/bin/ls").stdout.split()
    assert licences, f"{target}: no licences of NVIDIA's libraries"
    print(f"ok image {target}: {int(inspect(target)['Size']) / 1e6:.0f} MB, {len(licences)} licences", flush=True)


def check_words():
    done = run_once("store-cuda", "--device", "cuda", "--plaintext", check=False)
    assert done.returncode != 0 and "driver" in done.stderr and "cannot open shared object" not in done.stderr, done.stderr
    print(f"ok store-cuda: {done.stderr.strip().splitlines()[-1]}")
    for target in ("store-cuda", "stage-cuda"):
        done = run_once(target, "--version")
        print(f"ok {target}: {', '.join(line.strip() for line in done.stdout.splitlines())}")
    with tempfile.TemporaryDirectory(prefix="ballast-cuda-job-") as folder:
        os.chmod(folder, 0o755)
        with open(os.path.join(folder, "job.yaml"), "w") as file:
            file.write(JOB)
        work = ("-v", f"{folder}:/work:ro", "--tmpfs", "/tmp:size=64m")
        done = run_once("tools-cuda", "run", "/work/job.yaml", "--local", options=work, check=False)
        assert done.returncode != 0 and "driver" in done.stderr, done.stderr[-3000:]
        words = [line for line in done.stderr.splitlines() if "driver" in line.lower()][-1]
        print(f"ok a job for GPUs, in tools-cuda: exit {done.returncode}: {words.strip()[:200]}")
        done = run_once("tools-cuda", "run", "/work/job.yaml", "--local", "--set", "pipeline.device=host", options=work)
        print("ok the same on the host, in tools-cuda")


def main():
    folder = toolkit()
    with storage():
        for target, libraries in (("store-cuda", STORE), ("stage-cuda", STAGE), ("tools-cuda", STAGE),
                                  ("debug-cuda", STAGE)):
            check_image(target, libraries, folder)
        check_words()


if __name__ == "__main__":
    main()
