"""The memory that this process has freed, and how much of it the process keeps for its next use."""

from __future__ import annotations

import os
from typing import Final

FREED_BYTES_KEPT_MAX: Final = 32 * 1024 * 1024
"""Freed memory up to this size stays with the process; what is beyond it goes back to the
system."""

HEAP_BLOCK_BYTES_MAX: Final = 16 * 1024 * 1024
"""A larger block is the system's own mapping: it is taken from the system and given back alone."""

_ENVIRONMENT: Final = ("MALLOC_", "GLIBC_TUNABLES")
"""The names, or their beginnings, by which operators tell the C library the same."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Parameters of `mallopt`, from glibc's `malloc.h`."""


def keep_freed_memory() -> bool:
    """Let the process keep what it frees, up to a bound, and share it between its threads.

    glibc gives memory back as soon as a few blocks of a batch are free at the end of its heap, and
    the next batch takes the same pages from the system again: a page fault for each 4 KiB, several
    times per batch. Returns whether this process keeps it; not if another C library has no such
    parameters, or if the environment sets any.
    """
    import ctypes

    if any(name.startswith(_ENVIRONMENT) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(
        mallopt(parameter, value)
        for parameter, value in (
            (_TRIM_THRESHOLD, FREED_BYTES_KEPT_MAX),
            (_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX),
            (_ARENA_MAX, 1),
        )
    )
