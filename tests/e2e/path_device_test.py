# SPDX-License-Identifier: Apache-2.0
"""ballast-bench path on GPUs that are none (tests/fake_gpu): evict and load over every path, each beside a bare copy; what is
no path there says why, and is an error where it was asked for by name. Where the device has operations (tests/late), products
are timed beside blocks, at a pace and without one."""
import os
import re
import subprocess

from ballast import BIN, BUILD, skip

MODULES = os.path.join(BUILD, "tests", "fake_gpu")
LATE = os.path.join(BUILD, "tests", "late")


def path(*arguments, expect=0, **environment):
    done = subprocess.run([os.path.join(BIN, "ballast-bench"), "path", "--tensor", "1MiB", "--pairs", "1", *arguments],
                          env={**os.environ, "BALLAST_MODULES": MODULES, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == expect, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


def measured(text):
    return re.findall(r"^store (\S+) (evict|load) block_bytes=1048576 .* share_of_bare_copy=\d", text, re.M)


def main():
    if not os.path.exists(os.path.join(MODULES, "libballast-cuda.so")):
        skip("tests/fake_gpu is not built")
    both = lambda *names: [(name, way) for name in names for way in ("evict", "load")]  # noqa: E731
    for other in ((), ("--store-device", "cuda:0")):
        done = path("--device", "cuda:1", *other)
        assert measured(done.stdout) == both("cuda-ipc", "nccl", "shm", "tcp"), done.stdout + done.stderr
        assert "store overlap: none: " in done.stdout, done.stdout  # no operations there
    assert measured(path("--device", "cuda:1", "--path", "nccl").stdout) == both("nccl")
    poor = {"FAKE_GPU_CLOSED": "1", "FAKE_NCCL_MISSING": "1"}
    done = path("--device", "cuda:0", **poor)
    assert measured(done.stdout) == both("shm", "tcp"), done.stdout + done.stderr
    for words in ("store cuda-ipc: none: cuda-ipc was asked for: this process: this fake GPU keeps its memory",
                  "store nccl: none: this fake GPU has no NCCL"):
        assert words in done.stdout, done.stdout
    assert "this fake GPU has no NCCL" in path("--device", "cuda:0", "--path", "nccl", expect=2, **poor).stderr
    assert "--path nccl moves memory of GPUs: give --device cuda:N" in path("--path", "nccl", expect=2).stderr
    assert "there are 2 fake GPUs" in path("--device", "cuda:7", expect=3).stderr
    if os.path.exists(os.path.join(LATE, "libballast-cuda-compute.so")):
        done = path("--device", "cuda:0", "--path", "cuda-ipc", "--product", "64", "--pace", "1", BALLAST_MODULES=LATE)
        lines = re.findall(r"^store cuda-ipc overlap block_bytes=1048576 flop_per_byte=(\d+) moved=(\d+) rounds=20 "
                           r"products_tflop_s=[\d.]+ slowdown=-?[\d.]+ pairs=1$", done.stdout, re.M)
        assert [pace for pace, _ in lines] == ["1", "0"], done.stdout
        assert all(int(moved) > 0 for _, moved in lines), done.stdout
        done = path("--device", "cuda:0", "--path", "cuda-ipc", "--product", "0", BALLAST_MODULES=LATE)
        assert "overlap" not in done.stdout, done.stdout
    print("ok")


main()
