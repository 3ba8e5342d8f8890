"""The place of tables that are derived from the past, next to the target that they will join.

It outlives a run, so that a run that was killed is resumed. One process at a time works there.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waltz.errors import VersionConflictError
from waltz.spark.codes import TABLES_CONFLICT


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
