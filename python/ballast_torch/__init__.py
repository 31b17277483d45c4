# SPDX-License-Identifier: Apache-2.0
"""PyTorch borrows memory: activations are parked at an activation-store and come back with the same bits.

    import ballast_torch as bt
    with bt.Store("unix:/run/store", job="mine") as store:
        with bt.park(store):
            loss = model(x)
        loss.backward()

See docs/pytorch.md.
"""

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
