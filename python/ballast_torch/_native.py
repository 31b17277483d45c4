# SPDX-License-Identifier: Apache-2.0
"""libballast-client by ctypes: structures and calls as `<ballast/client.h>` declares them, and nothing else.

Every call releases the GIL. Threads of the library never call into Python.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from .errors import StoreError

SONAME = "libballast-client.so.0"
FOREVER = 2**64 - 1
PATHS = {"auto": 0, "shm": 1, "tcp": 2}


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("text", c_char * 1024)]


class Ticket(ctypes.Structure):
    _fields_ = [("index", c_uint32), ("serial", c_uint32)]


class Demand(ctypes.Structure):
    _fields_ = [("bytes", c_uint64), ("count", c_uint32)]


class Region(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("bytes", c_uint64), ("fd", c_int)]


class Label(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("chunk", c_uint32), ("micro_batch", c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("store", c_char_p),
        ("job", c_char_p),
        ("plan", c_uint64),
        ("stage", c_uint32),
        ("arena_bytes", c_uint64),
        ("ttl_ms", c_uint64),
        ("regions", POINTER(Region)),
        ("region_count", c_size_t),
        ("device", c_void_p),
        ("nccl", c_void_p),
        ("nccl_shared_gpu", c_bool),
        ("unit_bytes", c_uint64),
        ("deadline_ms", c_uint64),
        ("open_ms", c_uint64),
        ("path", c_int),
        ("unverified", c_bool),
        ("tls_ca", c_char_p),
        ("tls_certificate", c_char_p),
        ("tls_key", c_char_p),
        ("plaintext", c_bool),
        ("runtime", c_void_p),
        ("on_end", c_void_p),
        ("context", c_void_p),
    ]


_CALLS = {  # name: (result, arguments)
    "bl_status_name": (c_char_p, [c_int]),
    "bl_client_open": (c_int, [POINTER(Options), POINTER(c_void_p), POINTER(Error)]),
    "bl_client_reopen": (c_int, [c_void_p, POINTER(Error)]),
    "bl_client_close": (None, [c_void_p]),
    "bl_client_region_create": (c_int, [c_uint64, POINTER(Region), POINTER(Error)]),
    "bl_client_region_destroy": (None, [POINTER(Region)]),
    "bl_client_heap_create": (c_int, [POINTER(Region), POINTER(c_void_p), POINTER(Error)]),
    "bl_client_heap_destroy": (None, [c_void_p]),
    "bl_client_heap_acquire": (c_int, [c_void_p, c_uint64, POINTER(c_void_p), POINTER(Error)]),
    "bl_client_heap_release": (c_int, [c_void_p, c_void_p, POINTER(Error)]),
    "bl_client_reserve": (c_int, [c_void_p, c_uint64, POINTER(Demand), c_size_t, POINTER(Error)]),
    "bl_client_unreserve": (c_int, [c_void_p, c_uint64, POINTER(Error)]),
    "bl_client_slots": (c_size_t, [c_void_p, POINTER(c_uint64), c_size_t]),
    "bl_client_evict_start": (c_int, [c_void_p, c_uint64, c_void_p, c_uint64, POINTER(Label), POINTER(Ticket),
                                      POINTER(Error)]),
    "bl_client_load_start_kept": (c_int, [c_void_p, c_uint64, c_void_p, c_uint64, POINTER(Ticket), POINTER(Error)]),
    "bl_client_release_start": (c_int, [c_void_p, c_uint64, POINTER(Ticket), POINTER(Error)]),
    "bl_client_wait": (c_int, [c_void_p, Ticket, c_uint64, POINTER(Error)]),
    "bl_client_poll": (c_bool, [c_void_p, Ticket]),
    "bl_client_abandon": (None, [c_void_p, Ticket]),
    "bl_client_state": (c_int, [c_void_p, POINTER(Error)]),
    "bl_client_is_draining": (c_bool, [c_void_p]),
    "bl_client_path": (c_int, [c_void_p, c_char_p]),
}

_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library: of BALLAST_CLIENT_LIBRARY, beside this file (as a wheel has it), or of the system. OSError: none."""
    global _library
    if _library is None:
        beside = os.path.join(os.path.dirname(__file__), SONAME)
        path = os.environ.get("BALLAST_CLIENT_LIBRARY") or (beside if os.path.exists(beside) else SONAME)
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise OSError(f"ballast_torch needs {SONAME}: {error}; install libballast-client0, or set "
                          "BALLAST_CLIENT_LIBRARY to the file") from None
        for name, (result, arguments) in _CALLS.items():
            call = getattr(loaded, name)
            call.restype, call.argtypes = result, arguments
        _library = loaded
    return _library


def status_name(status: int) -> str:
    return library().bl_status_name(status).decode()


def check(status: int, error: Error, store: str) -> None:
    """Raises StoreError unless the status is OK."""
    if status != 0:
        text = error.text.decode(errors="replace")
        raise StoreError(text if store in text else f"{store}: {text}", status=status_name(status), store=store)


def call(store: str, name: str, *arguments: object) -> None:
    """A call whose last argument is the error."""
    error = Error()
    check(getattr(library(), name)(*arguments, byref(error)), error, store)
