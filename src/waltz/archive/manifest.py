"""Manifests: which objects an archive has, and what else it knows. Each names the one before it.

Owns their JSON, and what follows from a sequence of manifests. A manifest tells what has changed
since the one before; every `FULL_EVERY`th tells everything, so that an archive is opened with at
most that many reads. Every number is checked: an archive may have been changed by somebody hostile.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

from waltz.archive.log_object import (
    FOOTER_BYTES_MAX,
    HEADER_BYTES,
    OBJECT_BYTES_MAX,
    TRAILER_BYTES,
)
from waltz.errors import CorruptionError
from waltz.limits import PARTITIONS_MAX
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId

FORMAT: Final = 1

FULL_EVERY: Final = 100
"""Manifests from one that tells everything to the next one, which bounds the reads of an opening.
They are read 16 at a time: at 30 ms per read an archive is open after 0.3 s."""

MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of one manifest: some 500,000 objects."""

HEAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of `archive.json`."""

CUT_NAME_CHARACTERS_MAX: Final = 100
"""Characters of the name of a cut."""

MILLISECONDS_PER_DAY: Final = 24 * 3600 * 1000
MILLISECONDS_PER_HOUR: Final = 3600 * 1000

_NUMBER_MAX: Final = 2**63 - 2
_PATH: Final = re.compile(r"log/[0-9]{1,7}/[0-9]{20}-[0-9]{20}-[0-9a-f]{16}\.wal")
_CUT_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{CUT_NAME_CHARACTERS_MAX - 1}}}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class TimeMark(NamedTuple):
    """Every transaction up to this one was committed by that time, in milliseconds since 1970, by
    the archiver's clock."""

    transaction_id: TransactionId
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A vector of marks that all held at one instant: per partition the last transaction, -1 for
    none. `made_at` in milliseconds since 1970."""

    name: str
    marks: Mapping[PartitionId, TransactionId]
    made_at: int


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """An object with the records `first` to `end` - 1 of a partition.

    path           its name below the archive.
    byte_count     its length.
    raw_count      bytes of its records.
    footer_offset  where its footer begins, which goes on to its end.
    digest         SHA-256 of the whole object, as hexadecimal digits, like the next two.
    footer_digest  SHA-256 of the footer.
    raw_digest     SHA-256 of its records.
    level          how often its records were moved into a larger object.
    """

    path: str
    partition_id: PartitionId
    first: TransactionId
    end: TransactionId
    byte_count: int
    raw_count: int
    footer_offset: int
    digest: str
    footer_digest: str
    raw_digest: str
    level: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "partition": self.partition_id,
            "first": self.first,
            "end": self.end,
            "bytes": self.byte_count,
            "raw_bytes": self.raw_count,
            "footer_at": self.footer_offset,
            "sha256": self.digest,
            "footer_sha256": self.footer_digest,
            "records_sha256": self.raw_digest,
            "level": self.level,
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """A step of an archive: what has changed since the one before, or everything if `is_full`.

    previous      SHA-256 of the manifest before, as hexadecimal digits; None for the first.
    made_at       by the archiver's wall clock, in milliseconds since 1970.
    writer        a random number of the archiver's run and commit: no two manifests are equal.
    files         objects from now on.
    removed       objects no more, with the time since when: their records are in others.
    time_marks    new ones per partition, ascending.
    cuts          new ones.
    nodes         all nodes of the coordinator, by their path below the cluster's root; None: as
                  before.
    verified      per partition, the replicas that the new records were compared with.
    """

    number: int
    previous: str | None
    made_at: int
    writer: str
    is_full: bool = False
    files: tuple[ArchivedFile, ...] = ()
    removed: Mapping[str, int] = field(default_factory=dict)
    time_marks: Mapping[PartitionId, tuple[TimeMark, ...]] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()
    nodes: Mapping[str, bytes] | None = None
    verified: Mapping[PartitionId, tuple[ReplicaId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that an archive has, by the manifests up to `number`; -1: there is none.

    digest    SHA-256 of the last manifest; None: there is none.
    files     per partition, dense from transaction 0.
    verified  per partition, the replicas that its newest records were compared with.
    """

    cluster_key: UUID
    number: int = -1
    digest: str | None = None
    made_at: int | None = None
    files: Mapping[PartitionId, tuple[ArchivedFile, ...]] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    time_marks: Mapping[PartitionId, tuple[TimeMark, ...]] = field(default_factory=dict)
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    nodes: Mapping[str, bytes] = field(default_factory=dict)
    verified: Mapping[PartitionId, tuple[ReplicaId, ...]] = field(default_factory=dict)

    def end(self, partition_id: PartitionId) -> TransactionId:
        """Return the first transaction that is not archived."""
        files = self.files.get(partition_id)
        return files[-1].end if files else TransactionId(0)


def manifest_path(number: int) -> str:
    return f"manifests/{number:020d}.json"


def object_path(partition_id: int, first: int, end: int, unique: str) -> str:
    """Return the name of an object; `unique`, 16 hexadecimal digits, is its writer's own."""
    return f"log/{partition_id}/{first:020d}-{end:020d}-{unique}.wal"


def is_cut_name(name: str) -> bool:
    return _CUT_NAME.fullmatch(name) is not None


# What follows from manifests


def following(contents: Contents, manifest: Manifest, digest: str) -> Contents:
    """Return the contents after one more manifest, whose bytes have that digest.

    Raises CorruptionError: it is not the next one, or a partition's objects are not dense.
    """
    if manifest.is_full and contents.number < 0 <= manifest.number - 1:
        pass  # where an opening begins
    elif manifest.number != contents.number + 1 or manifest.previous != contents.digest:
        raise CorruptionError(
            f"manifest {manifest.number} names {manifest.previous} as the one before it; expected"
            f" {contents.digest}, the digest of manifest {contents.number}"
        )
    before = Contents(contents.cluster_key) if manifest.is_full else contents
    return replace(
        before,
        number=manifest.number,
        digest=digest,
        made_at=manifest.made_at,
        files=_files_after(before, manifest),
        removed={**before.removed, **manifest.removed},
        time_marks=_marks_after(before, manifest),
        cuts=_cuts_after(before, manifest),
        nodes=before.nodes if manifest.nodes is None else manifest.nodes,
        verified={**before.verified, **manifest.verified},
    )


def _files_after(
    before: Contents, manifest: Manifest
) -> dict[PartitionId, tuple[ArchivedFile, ...]]:
    gone = set(manifest.removed) if not manifest.is_full else set()
    changed: dict[PartitionId, list[ArchivedFile]] = {}
    for each in manifest.files:
        changed.setdefault(each.partition_id, [])
    for path in gone:
        changed.setdefault(PartitionId(int(path.split("/")[1])), [])
    for partition_id, files in changed.items():
        files += (each for each in before.files.get(partition_id, ()) if each.path not in gone)
    for each in manifest.files:
        changed[each.partition_id].append(each)
    found = dict(before.files)
    for partition_id, files in changed.items():
        files.sort(key=lambda each: each.first)
        position = 0
        for each in files:
            if each.first != position:
                raise CorruptionError(
                    f"manifest {manifest.number}: {each.path} begins at {each.first}; expected"
                    f" {position}"
                )
            position = each.end
        if position < before.end(partition_id):
            raise CorruptionError(
                f"manifest {manifest.number}: partition {partition_id} ends before {position}; it"
                f" ended before {before.end(partition_id)} already"
            )
        found[partition_id] = tuple(files)
    return found


def _marks_after(before: Contents, manifest: Manifest) -> dict[PartitionId, tuple[TimeMark, ...]]:
    found = dict(before.time_marks)
    for partition_id, marks in manifest.time_marks.items():
        joined = found.get(partition_id, ()) + marks
        added = joined[-len(marks) - 1 :]
        if any(one.transaction_id > other.transaction_id for one, other in pairwise(added)):
            raise CorruptionError(
                f"manifest {manifest.number}: the time marks of partition {partition_id} do not"
                " ascend"
            )
        found[partition_id] = joined
    return found


def _cuts_after(before: Contents, manifest: Manifest) -> dict[str, Cut]:
    found = dict(before.cuts)
    for cut in manifest.cuts:
        if cut.name in found:
            raise CorruptionError(f"manifest {manifest.number}: there is a cut {cut.name!r}")
        found[cut.name] = cut
    return found


def everything(contents: Contents, change: Manifest) -> Manifest:
    """Return `change`, which follows on `contents`, as a manifest that tells everything.

    Left out is what nobody asks for any more: times of removal older than two days, and all but one
    time mark per hour if older than a day.
    """
    after = following(contents, change, "")
    day, now = MILLISECONDS_PER_DAY, change.made_at
    return replace(
        change,
        is_full=True,
        files=tuple(each for _, files in sorted(after.files.items()) for each in files),
        removed={path: at for path, at in after.removed.items() if at > now - 2 * day},
        time_marks={each: thinned(marks, now - day) for each, marks in after.time_marks.items()},
        cuts=tuple(after.cuts.values()),
        nodes=after.nodes,
        verified=after.verified,
    )


def thinned(marks: Iterable[TimeMark], until: int) -> tuple[TimeMark, ...]:
    """Return `marks` with the last one of each hour only where they are older than `until`."""
    found: list[TimeMark] = []
    for mark in marks:
        if (
            found
            and mark.milliseconds < until
            and found[-1].milliseconds // MILLISECONDS_PER_HOUR
            == mark.milliseconds // MILLISECONDS_PER_HOUR
        ):
            found[-1] = mark
        else:
            found.append(mark)
    return tuple(found)


# Bytes


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def encode_head(cluster_key: UUID) -> bytes:
    """Return the bytes of `archive.json`."""
    return _text({"format": FORMAT, "cluster": str(cluster_key)})


def decode_head(data: bytes) -> UUID:
    """Return the cluster key in `archive.json`. Raises CorruptionError."""
    document = _document(data, "archive.json")
    with _explained("archive.json"):
        version = _number(document["format"])
        if version != FORMAT:
            raise CorruptionError(
                f"archive.json: format {version}; this release reads {FORMAT}: use a newer one"
            )
        return UUID(document["cluster"])


def digest_of(data: bytes) -> str:
    """Return the SHA-256 as hexadecimal digits."""
    return sha256(data).hexdigest()


def encode_manifest(cluster_key: UUID, manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    nodes = manifest.nodes
    return _text(
        {
            "format": FORMAT,
            "cluster": str(cluster_key),
            "number": manifest.number,
            "previous": manifest.previous,
            "made": manifest.made_at,
            "writer": manifest.writer,
            "full": manifest.is_full,
            "files": [each.to_json() for each in manifest.files],
            "removed": dict(manifest.removed),
            "times": {
                str(each): [list(mark) for mark in marks]
                for each, marks in manifest.time_marks.items()
            },
            "cuts": {
                cut.name: {
                    "marks": {str(each): mark for each, mark in cut.marks.items()},
                    "made": cut.made_at,
                }
                for cut in manifest.cuts
            },
            "coordinator": None
            if nodes is None
            else {path: base64.b64encode(data).decode() for path, data in nodes.items()},
            "verified": {str(each): list(nodes) for each, nodes in manifest.verified.items()},
        }
    )


def decode_manifest(data: bytes, cluster_key: UUID, number: int) -> Manifest:
    """Return the manifest of that number. Raises CorruptionError: it is none, or another's."""
    name = manifest_path(number)
    document = _document(data, name)
    with _explained(name):
        if _number(document["format"]) != FORMAT:
            raise CorruptionError(f"{name}: format {document['format']}; expected {FORMAT}")
        if document["cluster"] != str(cluster_key):
            raise CorruptionError(
                f"{name} is of cluster {document['cluster']}; expected {cluster_key}"
            )
        if document["number"] != number:
            raise CorruptionError(f"{name} has number {document['number']}")
        previous = document["previous"]
        if type(document["full"]) is not bool:
            raise CorruptionError(f"{name}: full is {document['full']!r}")
        return Manifest(
            number,
            None if previous is None else _digest(previous),
            _number(document["made"]),
            _string(document["writer"]),
            document["full"],
            tuple(_file(each) for each in document["files"]),
            {_path(path): _number(at) for path, at in document["removed"].items()},
            {
                _partition(each): tuple(TimeMark(_mark(mark), _number(at)) for mark, at in marks)
                for each, marks in document["times"].items()
            },
            tuple(_cut(cut_name, cut) for cut_name, cut in document["cuts"].items()),
            None if document["coordinator"] is None else _nodes(document["coordinator"]),
            {
                _partition(each): tuple(ReplicaId(_string(node)) for node in nodes)
                for each, nodes in document["verified"].items()
            },
        )


def _document(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{name} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise CorruptionError(f"{name} is no JSON object")
    return document


class _explained:  # noqa: N801 -- reads as a statement
    """Turns what is wrong with a document into a CorruptionError that names it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError):
            raise CorruptionError(f"{self._name} lacks {error}") from None
        if isinstance(error, (ValueError, TypeError, AttributeError, binascii.Error)):
            raise CorruptionError(f"{self._name}: {error}") from None


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{value!a:.40} is no number from 0 to {_NUMBER_MAX}")
    return value


def _mark(value: Any) -> TransactionId:
    return NOTHING if value == -1 and type(value) is int else TransactionId(_number(value))


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!a:.40} is no text")
    return value


def _digest(value: Any) -> str:
    if type(value) is not str or not _DIGEST.fullmatch(value):
        raise ValueError(f"{value!a:.80} is no SHA-256")
    return value


def _path(value: Any) -> str:
    if type(value) is not str or not _PATH.fullmatch(value):
        raise ValueError(f"{value!a:.80} is no name of an object")
    return value


def _partition(value: Any) -> PartitionId:
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 7:
        value = int(value)
    if not 0 <= _number(value) < PARTITIONS_MAX:
        raise ValueError(f"{value!a:.40} is no partition")
    return PartitionId(value)


def _file(value: Mapping[str, Any]) -> ArchivedFile:
    found = ArchivedFile(
        _path(value["path"]),
        _partition(value["partition"]),
        TransactionId(_number(value["first"])),
        TransactionId(_number(value["end"])),
        _number(value["bytes"]),
        _number(value["raw_bytes"]),
        _number(value["footer_at"]),
        _digest(value["sha256"]),
        _digest(value["footer_sha256"]),
        _digest(value["records_sha256"]),
        _number(value["level"]),
    )
    footer = found.byte_count - found.footer_offset
    if (
        found.path.rpartition("-")[0]
        != object_path(found.partition_id, found.first, found.end, "").rpartition("-")[0]
        or found.first >= found.end
        or found.raw_count > OBJECT_BYTES_MAX
        or not HEADER_BYTES + TRAILER_BYTES <= footer <= FOOTER_BYTES_MAX
        or found.footer_offset < HEADER_BYTES
        or found.footer_offset > OBJECT_BYTES_MAX + FOOTER_BYTES_MAX
    ):
        raise ValueError(f"{found.path} cannot be such an object")
    return found


def _cut(name: str, value: Mapping[str, Any]) -> Cut:
    if not is_cut_name(name):
        raise ValueError(f"{name!a:.80} is no name of a cut")
    marks = {_partition(each): _mark(mark) for each, mark in value["marks"].items()}
    return Cut(name, marks, _number(value["made"]))


def _nodes(value: Mapping[str, Any]) -> dict[str, bytes]:
    return {path: base64.b64decode(_string(data), validate=True) for path, data in value.items()}
