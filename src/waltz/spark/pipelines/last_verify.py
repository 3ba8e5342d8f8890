"""The file that says when a pipeline's target was last verified, and with which result.

It lies next to the target. `waltz pipeline verify` writes it, `rebuild` removes it, and only what
operators are shown rests on it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from waltz.spark.followed_metrics import LastVerify

RECORD_FORMAT: Final = 1

RECORD_BYTES_MAX: Final = 4096
"""Bytes of the file that are read; a longer one is not one of this kind."""


def record_path(target: Path) -> Path:
    """Return the file for a target."""
    return target.with_name(f".{target.name}.verified.json")


def write_record(target: Path, verify: LastVerify, *, url: str | None = None) -> None:
    """Replace the record of the target; `url` is that of tables in an object store, of which
    others may have the same name. Raises OSError."""
    path = record_path(target)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    document: dict[str, int | str] = {
        "format": RECORD_FORMAT,
        "verified_at": verify.verified_at,
        "transactions": verify.transactions,
        "differences": verify.differences,
    }
    if url is not None:
        document["url"] = url
    try:
        fresh.write_text(json.dumps(document) + "\n")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_record(target: Path, *, url: str | None = None) -> LastVerify | None:
    """Return the record of the target, as `write_record`; None: there is none, none that can be
    read, or that of other tables."""
    try:
        with record_path(target).open("rb") as file:
            content = file.read(RECORD_BYTES_MAX + 1)
        if len(content) > RECORD_BYTES_MAX:
            return None
        document = json.loads(content)
        if document["format"] != RECORD_FORMAT or document.get("url", url) != url:
            return None
        numbers = [document[key] for key in ("verified_at", "transactions", "differences")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers):
        return None
    return LastVerify(*numbers)


def remove_record(target: Path) -> None:
    """Remove the record: the target is another one now. Raises OSError."""
    record_path(target).unlink(missing_ok=True)
