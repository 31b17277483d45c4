# SPDX-License-Identifier: Apache-2.0
"""What the tests of ballast_torch share: a Python that has torch, stores, and gradients to compare."""
import contextlib
import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
sys.path.insert(0, os.path.join(ROOT, "python"))
from ballast import BIN, BUILD, Service, scratch, skip  # noqa: E402, F401

os.environ.setdefault("BALLAST_CLIENT_LIBRARY", os.path.join(BUILD, "lib", "libballast-client.so.0"))
os.environ.setdefault("OMP_NUM_THREADS", "1")


def need_torch():
    """Goes on in the Python of BALLAST_TORCH_PYTHON, if there is one; skips where there is no torch."""
    if importlib.util.find_spec("torch") is not None:
        return
    other = os.environ.pop("BALLAST_TORCH_PYTHON", None)
    if other is None:
        skip("there is no torch in this Python; BALLAST_TORCH_PYTHON may name one that has it")
    os.execv(other, [other, "-B", *sys.argv])


@contextlib.contextmanager
def a_store(folder, *arguments, name="store", capacity="256 MiB"):
    service = Service(folder, "activation-store", "--listen", f"unix:{folder}/{name}", "--capacity", capacity, *arguments)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()


def bits(tensor):
    import torch
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same(left, right):
    """Whether two lists of tensors (or None) have the same bits."""
    import torch
    return len(left) == len(right) and all(
        (a is None and b is None) or (a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b)))
        for a, b in zip(left, right))
