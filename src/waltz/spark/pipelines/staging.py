"""The places next to a target: of tables that are derived from the past and will join the others,
and of what a process needs only as long as it is at work.

The first outlives a run, so that a run that was killed is resumed. One process at a time works
there. What a killed process has left in a place of the second kind is of no use to another one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from waltz.errors import VersionConflictError
from waltz.spark.codes import TABLES_CONFLICT

SCRATCH_SECONDS_MIN: Final = 24 * 3600.0
"""Age in seconds from which a scratch directory that no process holds was left by a killed one."""


def staging_path(target: Path) -> Path:
    """Return the path for the tables that will join those of a target."""
    return target.with_name(f".{target.name}.backfill")


@contextmanager
def held_staging(target: Path) -> Iterator[Path]:
    """Yield the path, which no other process works on during the block. Raises
    VersionConflictError: another one does."""
    path = staging_path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VersionConflictError(
                f"{TABLES_CONFLICT} another run derives tables for {target} from the past; wait"
                " until it is done, then run again"
            ) from None
        yield path


def is_staged(target: Path) -> bool:
    """Return whether tables were left there."""
    return staging_path(target).exists()


def remove_staging(path: Path) -> None:
    """Remove what is there, a directory or a database. Raises OSError."""
    if path.is_dir():
        shutil.rmtree(path)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    path.with_name(f".{path.name}.lock").unlink(missing_ok=True)


@contextmanager
def scratch_directory(target: Path) -> Iterator[Path]:
    """Yield a directory on the disk of a target that is gone after the block. Those that killed
    processes left there a day ago are removed first. Raises OSError."""
    prefix = f".{target.name}.scratch-"
    for each in target.parent.iterdir():
        if each.name.startswith(prefix):
            _remove_left(each)
    with TemporaryDirectory(prefix=prefix, dir=target.parent) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)


def _remove_left(path: Path) -> None:
    """Remove a scratch directory if it is old and no process holds it."""
    try:
        if time.time() - path.stat().st_mtime < SCRATCH_SECONDS_MIN:
            return
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # its own process has just removed it
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
