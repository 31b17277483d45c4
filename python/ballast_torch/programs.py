# SPDX-License-Identifier: Apache-2.0
"""The programs of Ballast that this package starts."""

from __future__ import annotations

import os
import shutil


def find_program(name: str) -> str:
    """Where a program lies: in the folder BALLAST_BIN, beside this package (a wheel has it), or on PATH.

    Raises:
        FileNotFoundError: in none of them.
    """
    folder = os.environ.get("BALLAST_BIN")
    for path in ([os.path.join(folder, name)] if folder else []) + [os.path.join(os.path.dirname(__file__), "bin", name)]:
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not there: neither in BALLAST_BIN ({folder or 'not set'}), nor in this package, nor "
                                "on PATH; install the package ballast, or build the tree")
    return found
