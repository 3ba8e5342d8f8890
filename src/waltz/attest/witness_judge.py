"""The decisions of a witness: C2SP tlog-witness.

A witness keeps, per log, the newest checkpoint that it has cosigned. It cosigns another one only if
a proof shows that nothing of what it has seen before was changed. So two archives of one log that
differ cannot both be cosigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from waltz.attest.checkpoints import (
    Checkpoint,
    parse_checkpoint,
    parse_hash,
    parse_number,
    verified_checkpoint,
)
from waltz.attest.merkle import EMPTY_ROOT, LEAVES_MAX, PROOF_HASHES_MAX, is_consistent
from waltz.attest.notes import NOTE_BYTES_MAX, Note, PublicKey, parse_note
from waltz.errors import AttestationError

REQUEST_BYTES_MAX: Final = NOTE_BYTES_MAX + 4096
"""Bytes of a request: a note, 63 hashes in base64, and a number."""

_OLD: Final = "old "


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """A request: the size of the newest checkpoint that the witness has cosigned, as far as the
    asker knows, the proof from there, and the new checkpoint."""

    old_size: int
    proof: tuple[bytes, ...]
    note: Note


class Head(NamedTuple):
    """Size and root of the newest checkpoint of a log that a witness has cosigned."""

    size: int
    root: bytes


NOTHING_SEEN: Final = Head(0, EMPTY_ROOT)


@dataclass(frozen=True, slots=True)
class Cosign:
    """The checkpoint is to be kept as the newest one, and then to be cosigned."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer without a cosignature: HTTP status, and text.

    `cosigned_size` is set if the asker named another size than that of the newest checkpoint.
    """

    status: int
    text: str
    cosigned_size: int | None = None


def parse_request(data: bytes) -> AddCheckpoint:
    """Return the request of a body. Raises AttestationError: not a request."""
    if len(data) > REQUEST_BYTES_MAX:
        raise AttestationError(f"a request of {len(data)} bytes; at most {REQUEST_BYTES_MAX}")
    head, blank, note = data.partition(b"\n\n")
    try:
        old, *hashes = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise AttestationError("not a request: it is not ASCII") from None
    if not blank or not old.startswith(_OLD):
        raise AttestationError("not a request: 'old SIZE', a proof and a checkpoint are expected")
    if len(hashes) > PROOF_HASHES_MAX:
        raise AttestationError(f"a proof of {len(hashes)} hashes; at most {PROOF_HASHES_MAX}")
    size = parse_number(old.removeprefix(_OLD), LEAVES_MAX)
    return AddCheckpoint(size, tuple(map(parse_hash, hashes)), parse_note(note))


def key_for(origin: str, keys: Sequence[PublicKey]) -> PublicKey | None:
    """Return the key of the log called `origin`: the key of its name, or of a part of it up to a
    slash, so that one key signs for all partitions of a cluster."""
    for key in keys:
        if origin == key.name or origin.startswith(f"{key.name}/"):
            return key
    return None


def judge(request: AddCheckpoint, key: PublicKey | None, seen: Head) -> Cosign | Refusal:
    """Decide on a request. `key`: the key that is known for the log; `seen`: what the witness has
    cosigned of it last, `NOTHING_SEEN` if it has cosigned nothing."""
    try:
        claimed = parse_checkpoint(request.note.text)
    except AttestationError as error:
        return Refusal(400, str(error))
    if key is None:
        # "If the checkpoint origin is unknown, the witness MUST respond with a 404."
        return Refusal(404, f"this witness knows no log {claimed.origin}")
    try:
        checkpoint = verified_checkpoint(request.note, key)
    except AttestationError as error:
        # "If none of the signatures verify against a trusted public key, [...] 403 Forbidden."
        return Refusal(403, str(error))
    if request.old_size > checkpoint.size:
        return Refusal(400, f"an old size of {request.old_size}, above {checkpoint.size}")
    if request.old_size != seen.size:
        # "It MUST check that the old size matches the size of the latest checkpoint it cosigned."
        return Refusal(409, f"{seen.size}", seen.size)
    if checkpoint.size == seen.size and checkpoint.root != seen.root:
        # "If the old size matches the checkpoint size, the witness MUST check that the root hashes
        # are also identical. If they don't match, [...] 409 Conflict."
        return Refusal(409, f"another tree of {seen.size} leaves was cosigned before")
    if not is_consistent(seen.size, seen.root, checkpoint.size, checkpoint.root, request.proof):
        return Refusal(
            422,
            f"the proof does not show that the {checkpoint.size} leaves begin with the"
            f" {seen.size} that were cosigned before",
        )
    return Cosign(checkpoint)
