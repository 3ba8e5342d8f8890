"""Proofs that a transaction is in the log, which nobody needs a cluster to check.

A proof is a C2SP tlog-proof: the transaction's index, its audit path, and a checkpoint with the
signatures of the log and of witnesses. Its extra data is the entry of the leaf (`leaves.py`), so
that the record itself is in the file; the path proves it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

from waltz.attest.checkpoints import (
    Checkpoint,
    origin_of,
    parse_hash,
    parse_number,
    verified_checkpoint,
)
from waltz.attest.leaves import PLACE
from waltz.attest.merkle import LEAVES_MAX, PROOF_HASHES_MAX, is_included, leaf_hash
from waltz.attest.notes import NOTE_BYTES_MAX, KeyKind, Note, PublicKey, from_base64, parse_note
from waltz.errors import AttestationError
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER, RECORD_HEADER_BYTES, Record, request_id_from
from waltz.types import PartitionId, TransactionId

FIRST_LINE: Final = "c2sp.org/tlog-proof@v1"

PROOF_BYTES_MAX: Final = (DATA_BYTES_MAX + 1024) * 4 // 3 + NOTE_BYTES_MAX + 8 * 1024
"""Bytes of a proof: the largest transaction in base64, the path and the note."""


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """A transaction's entry, its place in the tree, the audit path, and the signed checkpoint."""

    entry: bytes
    index: int
    path: tuple[bytes, ...]
    note: Note

    def __str__(self) -> str:
        lines = [
            FIRST_LINE,
            f"extra {base64.b64encode(self.entry).decode()}",
            f"index {self.index}",
            *(base64.b64encode(each).decode() for each in self.path),
            "",
        ]
        return "\n".join(lines) + f"\n{self.note}"


class Cosigned(NamedTuple):
    """A witness has said that it has seen no other tree of this log, at `time` by its own clock,
    in seconds since 1970."""

    witness: str
    time: int


@dataclass(frozen=True, slots=True)
class Proven:
    """A transaction that a proof shows to be in the log of a cluster."""

    cluster_key: UUID
    partition_id: PartitionId
    record: Record
    checkpoint: Checkpoint
    cosigned: tuple[Cosigned, ...]


def parse_proof(data: bytes) -> InclusionProof:
    """Return the proof that a file holds; nothing of it is verified.

    Raises AttestationError: not a proof, or larger than `PROOF_BYTES_MAX`.
    """
    if len(data) > PROOF_BYTES_MAX:
        raise AttestationError(f"a proof of {len(data)} bytes; at most {PROOF_BYTES_MAX} are read")
    head, blank, note = data.partition(b"\n\n")
    try:
        first, extra, index, *path = head.decode("ascii").split("\n")
    except (UnicodeDecodeError, ValueError):
        raise AttestationError("not a proof: three lines and a path are expected") from None
    if first != FIRST_LINE or not blank:
        raise AttestationError(f"not a proof: its first line is not {FIRST_LINE}")
    if not extra.startswith("extra ") or not index.startswith("index "):
        raise AttestationError("not a proof of a transaction: lines 'extra' and 'index' expected")
    if len(path) > PROOF_HASHES_MAX:
        raise AttestationError(f"a path of {len(path)} hashes; at most {PROOF_HASHES_MAX}")
    entry = from_base64(extra.removeprefix("extra "))
    if entry is None:
        raise AttestationError("not a proof of a transaction: its extra data is not base64")
    number = parse_number(index.removeprefix("index "), LEAVES_MAX)
    return InclusionProof(entry, number, tuple(map(parse_hash, path)), parse_note(note))


def verify(
    proof: InclusionProof,
    log_key: PublicKey,
    witness_keys: Sequence[PublicKey] = (),
    witnesses_min: int = 0,
) -> Proven:
    """Return what the proof proves if the log's key is genuine, and that many witnesses are.

    Raises AttestationError: the proof does not hold; the text says which part of it.
    """
    checkpoint = verified_checkpoint(proof.note, log_key)
    cluster_key, partition_id, record = _opened(proof.entry)
    origin = origin_of(cluster_key, partition_id)
    if checkpoint.origin != origin:
        raise AttestationError(f"the checkpoint is of {checkpoint.origin}; the entry of {origin}")
    if record.transaction_id != proof.index:
        raise AttestationError(
            f"the entry is transaction {record.transaction_id}; the proof is of {proof.index}"
        )
    leaf = leaf_hash(proof.entry)
    if not is_included(leaf, proof.index, checkpoint.size, checkpoint.root, proof.path):
        raise AttestationError(
            f"the path does not lead from transaction {proof.index} to the root of the checkpoint"
            f" of {checkpoint.size} transactions"
        )
    cosigned = cosigners(proof.note, witness_keys)
    if len(cosigned) < witnesses_min:
        raise AttestationError(
            f"cosigned by {len(cosigned)} of the known witnesses; {witnesses_min} are asked for"
        )
    return Proven(cluster_key, partition_id, record, checkpoint, cosigned)


def cosigners(note: Note, keys: Sequence[PublicKey]) -> tuple[Cosigned, ...]:
    """Return the witnesses that have cosigned. Keys of the same secret are one witness, whatever
    their names. Raises AttestationError: a signature is not of its key; a key is that of a log."""
    found: dict[bytes, Cosigned] = {}
    for key in keys:
        if key.kind is not KeyKind.WITNESS:
            raise AttestationError(f"{key.name} is the key of a log, and witnesses nothing")
        time = key.verified_time(note)
        if time is not None:
            found.setdefault(key.public, Cosigned(key.name, time))
    return tuple(found.values())


def _opened(entry: bytes) -> tuple[UUID, PartitionId, Record]:
    if len(entry) < PLACE.size + RECORD_HEADER_BYTES:
        raise AttestationError(f"an entry of {len(entry)} bytes is too short for a transaction")
    key, partition_id = PLACE.unpack_from(entry)
    transaction_id, request_id, header, length, checksum = RECORD_HEADER.unpack_from(
        entry, PLACE.size
    )
    data = entry[PLACE.size + RECORD_HEADER_BYTES :]
    if len(data) != length:
        raise AttestationError(f"the entry has {len(data)} bytes of data; it says {length}")
    if crc32(data) != checksum:
        raise AttestationError("the entry's data does not have the CRC-32 that it says")
    record = Record(
        TransactionId(transaction_id), request_id_from(request_id), header, data, checksum
    )
    return UUID(bytes=key), PartitionId(partition_id), record
