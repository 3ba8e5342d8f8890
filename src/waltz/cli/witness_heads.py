"""The memory of a witness: one row per log, in SQLite, synced before anything is cosigned."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from threading import Lock
from typing import Final

from waltz.attest.merkle import HASH_BYTES
from waltz.attest.notes import PublicKey
from waltz.attest.witness_judge import (
    NOTHING_SEEN,
    AddCheckpoint,
    Cosign,
    Head,
    Refusal,
    judge,
    key_for,
)
from waltz.errors import ConfigurationError

BUSY_SECONDS_MAX: Final = 10.0
"""Seconds for which a request waits for another process that uses the file."""


class WitnessHeads:
    """The newest checkpoint of each log that was cosigned."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it. Raises ConfigurationError: it cannot be used."""
        self._lock = Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS heads"
                " (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL)"
            )
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"{path} cannot be used as a witness's memory: {error}"
            ) from None

    def head(self, origin: str) -> Head:
        """Return what was cosigned last of a log, `NOTHING_SEEN` if nothing was."""
        with self._lock:
            return self._head(origin)

    def decide(
        self, request: AddCheckpoint, origin: str, keys: tuple[PublicKey, ...]
    ) -> Cosign | Refusal:
        """Judge a request, and keep what is to be cosigned before returning.

        "Checking the old size against the latest checkpoint and persisting the new checkpoint must
        be performed atomically." Raises sqlite3.Error: nothing is known to be kept; nothing may be
        cosigned.
        """
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                decision = judge(request, key_for(origin, keys), self._head(origin))
                if isinstance(decision, Cosign):
                    checkpoint = decision.checkpoint
                    self._database.execute(
                        "INSERT INTO heads VALUES (?, ?, ?) ON CONFLICT (origin)"
                        " DO UPDATE SET size = excluded.size, root = excluded.root",
                        (checkpoint.origin, checkpoint.size, checkpoint.root),
                    )
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            return decision

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _head(self, origin: str) -> Head:
        row = self._database.execute(
            "SELECT size, root FROM heads WHERE origin = ?", (origin,)
        ).fetchone()
        if row is None:
            return NOTHING_SEEN
        size, root = row
        if not isinstance(size, int) or not isinstance(root, bytes) or len(root) != HASH_BYTES:
            raise sqlite3.DatabaseError(f"the row of {origin} is not a head")
        return Head(size, root)
