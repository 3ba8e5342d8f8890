"""Directories for sockets of this machine, and other users at them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

OTHER_UID = 1
"""A user with a name on every system: daemon."""

NAMELESS_UID = 54_321

needs_other_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


@contextmanager
def socket_directory(mode: int = 0o755) -> Iterator[Path]:
    """Yield a directory with this mode that every user can reach, unlike those of pytest."""
    directory = Path(tempfile.mkdtemp(prefix="waltz-sockets-"))
    directory.chmod(mode)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Act as another user: the system proves the effective user of who connects or listens."""
    own = os.geteuid()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(own)
