# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, in the grain at which callers act differently."""

from __future__ import annotations


class StoreError(RuntimeError):
    """A store refused or could not do something; the text names the store and the cause.

    Attributes:
        status: the name of the library's status, as `UNAVAILABLE` (nobody answers), `EXHAUSTED` (no slot or quota),
            `FENCED` (another holder took its place), `INVALID`, `DENIED`, `PRECONDITION` (used after close, or in a
            process that was forked from the one that opened the store), ...
        store: the address of the store.
    """

    def __init__(self, message: str, *, status: str, store: str) -> None:
        super().__init__(message)
        self.status = status
        self.store = store

    def kept(self) -> StoreError:
        """The same for whoever keeps it: one that was raised refers to frames, and with them to what callers compute with."""
        return StoreError(str(self), status=self.status, store=self.store)


class BlockLost(StoreError):
    """A parked block cannot be had back: the store died, was restarted, or revoked the lease.

    The step that needed it cannot end; the parameters are as they were. Clear gradients and run the step again, or park
    with `recompute=` or `on_loss="recompute"`.

    Attributes:
        lease: the number of the lease (slot) at the store.
        cause: why, as the store or the client's library said it.
    """

    def __init__(self, *, store: str, lease: int, cause: str, status: str = "DATA_LOSS") -> None:
        super().__init__(f"{store}: a block is lost that was parked under lease {lease:#x}: {cause}; run the step again, "
                         "or park with on_loss='recompute'", status=status, store=store)
        self.lease = lease
        self.cause = cause
