"""The object that says when an archive was verified last, and with which result.

Owns its JSON. The command that verifies writes it; only what operators are shown rests on it. A run
that has looked at a share of the objects does not replace what the last full one has said.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from waltz.archive.archive_target import Target
from waltz.archive.archive_verification import Verification
from waltz.errors import ArchiveDamagedError, NotFoundError

VERIFIED: Final = "verified.json"
RECORD_FORMAT: Final = 1

RECORD_BYTES_MAX: Final = 64 * 1024
"""Bytes of the object that are read."""


@dataclass(frozen=True, slots=True)
class VerificationRecord:
    """A run of `waltz archive verify`.

    verified_at  milliseconds since 1970, by the clock of the machine on which it ran.
    right        True: all that was looked at; False: something was wrong; None: nothing was known
                 to be wrong, and not everything could be learnt.
    manifests    how many manifests the archive had.
    against      with what records were compared, `log` or `replicas`; None: with nothing.
    """

    verified_at: int
    right: bool | None
    manifests: int
    objects: int
    objects_left_out: int
    transactions: int
    against: str | None
    findings: int
    unknown: int

    @property
    def is_full(self) -> bool:
        """Whether no object was left out."""
        return not self.objects_left_out


@dataclass(frozen=True, slots=True)
class VerificationRecords:
    """The last run, and the last one that has looked at all objects."""

    last: VerificationRecord | None = None
    last_full: VerificationRecord | None = None


def record_of(found: Verification, verified_at: int, against: str | None) -> VerificationRecord:
    """Return the record of a run that has ended now."""
    return VerificationRecord(
        verified_at,
        found.verdict,
        found.manifests,
        found.objects,
        found.objects_left_out,
        found.transactions,
        against,
        len(found.findings),
        len(found.unknown),
    )


def read_records(target: Target) -> VerificationRecords:
    """Return what was recorded. Raises ArchiveDamagedError: the object cannot be read;
    ArchiveUnreachableError."""
    try:
        data = target.get(VERIFIED, RECORD_BYTES_MAX)
    except NotFoundError:
        return VerificationRecords()
    try:
        document = json.loads(data)
        if document["format"] != RECORD_FORMAT:
            raise ValueError(document["format"])
        return VerificationRecords(_record(document["last"]), _record(document["last_full"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArchiveDamagedError(
            f"{target.url}/{VERIFIED} is {data!r:.200}; expected format {RECORD_FORMAT}. It says"
            " only when the archive was verified: delete it, and run waltz archive verify",
            VERIFIED,
        ) from None


def write_record(target: Target, record: VerificationRecord) -> None:
    """Keep the record of a run. Raises ConfigurationError: writing is not allowed;
    ArchiveUnreachableError."""
    try:
        before = read_records(target)
    except ArchiveDamagedError:
        before = VerificationRecords()
    last_full = record if record.is_full else before.last_full
    document = {
        "format": RECORD_FORMAT,
        "last": asdict(record),
        "last_full": None if last_full is None else asdict(last_full),
    }
    target.put(VERIFIED, (json.dumps(document, sort_keys=True) + "\n").encode())


def _record(found: Any) -> VerificationRecord | None:
    if found is None:
        return None
    right, against = found["right"], found["against"]
    if right not in (True, False, None) or against not in ("log", "replicas", None):
        raise ValueError(found)
    return VerificationRecord(
        int(found["verified_at"]),
        right,
        int(found["manifests"]),
        int(found["objects"]),
        int(found["objects_left_out"]),
        int(found["transactions"]),
        against,
        int(found["findings"]),
        int(found["unknown"]),
    )
