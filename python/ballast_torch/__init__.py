# SPDX-License-Identifier: Apache-2.0
"""PyTorch borrows memory: activations are parked at an activation-store and come back with the same bits.

    import ballast_torch as bt
    with bt.Store("unix:/run/store", job="mine") as store:
        with bt.park(store):
            loss = model(x)
        loss.backward()

See docs/pytorch.md.
"""

import sys

try:
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    _WORDS = "ballast_torch needs the package torch, which is not there: pip install torch"
    if sys.argv[:1] == ["-m"]:  # python -m ballast_torch
        sys.exit(_WORDS)
    raise ImportError(_WORDS, name="torch") from None

from . import megatron
from .backend import StorageBackend
from .errors import BlockLost, StoreError
from .parking import hooks, park
from .pipelining import attach
from .profile import profile
from .schedule import schedule
from .store import Store

__version__ = "0.1.0"
__all__ = ["BlockLost", "StorageBackend", "Store", "StoreError", "attach", "hooks", "megatron", "park", "profile", "schedule"]
