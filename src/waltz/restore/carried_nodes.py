"""The notes and named consumers of an archived cluster: which a restored cluster keeps.

Owns what becomes of each. Pure. A consumer's mark beyond the point is dropped: marks only grow, so
it would be shown for ever. A note of a Spark sink is replaced by one that refuses every batch: the
note tells which rows of a batch are in the log, and neither the note, which is as old as the
archive's copy of the coordinator, nor the log, which ends at the point, says so any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from waltz.cluster.consumer_marks import decode_kept, encode_kept
from waltz.errors import RemoteProtocolError
from waltz.types import PartitionId, TransactionId

SINK_NOTE_PREFIX: Final = "spark-"
"""The beginning of the names of notes that tasks of a Spark sink keep (decision 0018)."""

SINK_NOTE_FORMAT: Final = 1
"""The format of these notes, in which the refusals are written."""

NO_BATCH: Final = 2**63 - 1
"""The batch of a note that refuses: no batch is later, so that each one is refused as over."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The data of the nodes below one parent, by name, and sentences about what was changed."""

    nodes: Mapping[str, bytes]
    changes: tuple[str, ...]


def carried_consumers(
    nodes: Mapping[str, bytes], lasts: Mapping[PartitionId, TransactionId]
) -> Carried:
    """Return the named consumers with the marks that are not beyond the point. A node that cannot
    be read is dropped; so is a consumer without any mark left."""
    kept: dict[str, bytes] = {}
    changes = []
    for name, data in sorted(nodes.items()):
        try:
            marks = decode_kept(data or b"{}")
        except RemoteProtocolError as error:
            changes.append(f"consumer {name}: dropped, {error}")
            continue
        beyond = {
            each: mark
            for each, mark in marks.items()
            if each not in lasts or mark.transaction_id > lasts[each]
        }
        for partition_id, mark in sorted(beyond.items()):
            changes.append(
                f"consumer {name}: its mark {mark.transaction_id} of partition {partition_id} is"
                " beyond the point, and dropped"
            )
        if left := {each: mark for each, mark in marks.items() if each not in beyond}:
            kept[name] = encode_kept(left)
    return Carried(kept, tuple(changes))


def carried_notes(
    nodes: Mapping[str, bytes], lasts: Mapping[PartitionId, TransactionId], restore_id: str
) -> Carried:
    """Return the notes: those of Spark sinks refuse every batch, all others are as archived."""
    kept: dict[str, bytes] = {}
    changes = []
    for name, data in sorted(nodes.items()):
        if not name.startswith(SINK_NOTE_PREFIX):
            kept[name] = data
            continue
        if (before := _refused_before(data)) is not None:
            kept[name] = data
            changes.append(
                f"note {name}: refuses every batch from now on, since it did so before: {before}"
            )
            continue
        why = _why_refused(data, lasts)
        kept[name] = _refusal(f"the log was restored from an archive (restore {restore_id}): {why}")
        changes.append(f"note {name}: refuses every batch from now on, since {why}")
    return Carried(kept, tuple(changes))


def _refused_before(data: bytes) -> str | None:
    """Return what a note says that refuses every batch since an earlier restore; None: it is none
    of these."""
    try:
        found: Any = json.loads(data)
        said = found["restored"] if found["batch"] == NO_BATCH else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return said if isinstance(said, str) else None


def _why_refused(data: bytes, lasts: Mapping[PartitionId, TransactionId]) -> str:
    """Return why nobody can say which rows of the sink's last batch are in the restored log."""
    try:
        found: Any = json.loads(data)
        batch = int(found["batch"])
        marks = {PartitionId(int(each)): int(mark) for each, mark in found.get("marks", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "the archived note cannot be read"
    for partition_id, mark in sorted(marks.items()):
        if partition_id not in lasts or mark > lasts[partition_id]:
            return (
                f"batch {batch} began after transaction {mark} of partition {partition_id}, which"
                " is beyond the point: rows of earlier batches are missing"
            )
    return (
        f"batch {batch} was the last when the note was archived, and nobody can say which rows of"
        " it, and of later batches, are in the log"
    )


def _refusal(text: str) -> bytes:
    # Both kinds of notes have a format and a batch; releases that do not know `restored` say of a
    # lower batch that it is over.
    return json.dumps(
        {
            "format": SINK_NOTE_FORMAT,
            "batch": NO_BATCH,
            "marks": {},
            "clients": [],
            "refusal": None,
            "tasks": [],
            "restored": text,
        }
    ).encode()
