"""Checkpoints: size and root of a partition's tree, as a signed note (C2SP tlog-checkpoint)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.attest.merkle import HASH_BYTES, LEAVES_MAX
from waltz.attest.notes import KeyKind, Note, PublicKey, SecretKey, from_base64
from waltz.errors import AttestationError
from waltz.types import PartitionId

_NUMBER: Final = re.compile("0|[1-9][0-9]{0,18}")
"""A number that fits into 64 bits, "with no leading zeroes"."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A statement of the log called `origin`: its tree of `size` leaves has this `root`."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """Return the three lines that are signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    def signed(self, key: SecretKey) -> Note:
        text = self.text()
        return Note(text, (key.sign(text),))


def origin_of(cluster_key: UUID, partition_id: PartitionId) -> str:
    """Return the name of a partition's tree: cluster key and partition tell it from all others."""
    return f"waltz/{cluster_key}/{partition_id}"


def parse_checkpoint(text: str) -> Checkpoint:
    """Return the checkpoint of a note's text; lines after the third are not looked at.

    Raises AttestationError: not a checkpoint.
    """
    lines = text.split("\n")
    if len(lines) < 4 or not lines[0] or lines[-1] or not all(lines[:-1]):
        raise AttestationError("not a checkpoint: three lines are expected, none of them empty")
    origin, size, root = lines[:3]
    return Checkpoint(origin, parse_number(size, LEAVES_MAX), parse_hash(root))


def verified_checkpoint(note: Note, key: PublicKey) -> Checkpoint:
    """Return the checkpoint that the log's `key` has signed.

    Raises AttestationError: the key has not signed it, or is a witness's, or the note is not a
    checkpoint.
    """
    if key.kind is not KeyKind.LOG:
        raise AttestationError(f"{key.name} is the key of a witness, and signs no log")
    if key.verified_time(note) is None:
        # Nobody has signed for these names: no character of one may act on a terminal.
        signers = ", ".join(
            each.name if each.name.isprintable() else ascii(each.name)[1:-1]
            for each in note.signatures
        )
        raise AttestationError(f"the checkpoint is not signed by {key.name}; by {signers} it says")
    return parse_checkpoint(note.text)


def parse_number(text: str, most: int) -> int:
    """Return a decimal number without leading zeroes. Raises AttestationError."""
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise AttestationError(f"not a number from 0 to {most}: {text[:40]!r}")
    return int(text)


def parse_hash(text: str) -> bytes:
    """Return the hash that a line has in base64. Raises AttestationError."""
    found = from_base64(text)
    if found is None or len(found) != HASH_BYTES:
        raise AttestationError(f"not a hash of {HASH_BYTES} bytes in base64: {text[:80]!r}")
    return found
