"""libweft_tasks.so, as ctypes sees it. See weft_tasks.h for what the functions do."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from typing import Optional


class Argument(Structure):
    """weft_tasks_argument"""

    _fields_ = [("kind", c_int32), ("data", c_void_p), ("bytes", c_size_t)]


class Task(Structure):
    """weft_tasks_task"""

    _fields_ = [
        ("module", c_void_p),
        ("kernel", c_char_p),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_uint32),
        ("notify", c_uint32),
        ("estimate_ns", c_uint64),
        ("arguments", POINTER(Argument)),
        ("argument_count", c_size_t),
    ]


class Done(Structure):
    """weft_tasks_done"""

    _fields_ = [
        ("used_ns", c_uint64),
        ("latency_ns", c_uint64),
        ("runs", c_uint32),
        ("status", c_int32),
        ("device", c_char * 72),
    ]


_SIGNATURES = {
    "weft_tasks_open": (c_int, [c_char_p, c_char_p, POINTER(c_void_p)]),
    "weft_tasks_close": (None, [c_void_p]),
    "weft_tasks_load": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)]),
    "weft_tasks_unload": (None, [c_void_p]),
    "weft_tasks_submit": (c_int, [c_void_p, POINTER(Task), POINTER(c_void_p)]),
    "weft_tasks_wait": (c_int, [c_void_p, c_int64, POINTER(Done)]),
    "weft_tasks_number": (c_uint64, [c_void_p]),
    "weft_tasks_cancel": (None, [c_void_p]),
    "weft_tasks_release": (None, [c_void_p]),
    "weft_tasks_next": (c_int, [c_void_p, c_int64, POINTER(c_uint64)]),
    "weft_tasks_error": (c_char_p, []),
}

_loaded: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The library: the one that WEFT_TASKS_LIBRARY names, else the one that the system finds."""
    global _loaded
    if _loaded is None:
        path = os.environ.get("WEFT_TASKS_LIBRARY") or "libweft_tasks.so"
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise ImportError(
                f"{path} cannot be loaded ({error}): install Weft, or set WEFT_TASKS_LIBRARY to "
                "the path of libweft_tasks.so"
            ) from error
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        _loaded = loaded
    return _loaded
