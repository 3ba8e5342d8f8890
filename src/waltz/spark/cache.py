"""Directories that are made once and then only read: in the environment, or else per user."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from waltz.errors import ConfigurationError


def cache_directory(prefix: Path, temporary: Path) -> Path:
    """Return the directory for files that can be made again: inside `prefix`, the Python
    environment, if that is writable, so that they are deleted with it, else in `temporary`.

    Raises ConfigurationError: the directory in `temporary` belongs to another user.
    """
    if os.access(prefix, os.W_OK):
        directory = prefix / "var" / "cache" / "waltz"
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    directory = temporary / f"waltz-cache-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    # Programs are run from here, and every user may create names in a temporary directory.
    found = directory.lstat()
    if directory.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigurationError(
            f"{directory} must be a folder that only user {os.getuid()} can write to; remove what"
            " is there"
        )
    return directory


def make_once(directory: Path, fill: Callable[[Path], None]) -> Path:
    """Return `directory`, filled by `fill` if it did not exist. It appears whole or not at all, and
    of several processes that make it at once one wins.
    """
    if directory.is_dir():
        return directory
    draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    draft.chmod(0o755)
    try:
        fill(draft)
        draft.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory
