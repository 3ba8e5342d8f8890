"""Proves that an archive is whole: every manifest, every object, every record, byte by byte.

Shares no code with what writes and reads archives: manifests are taken as plain JSON, an object is
taken apart by its frames' own marks and record by record, and digests are computed over other
pieces than the archiver computed them. Nothing is changed.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from zlib import crc32

from waltz.archive.archive_target import Target
from waltz.archive.cluster_log import ArchivedLog
from waltz.errors import ArchiveDamagedError, NotFoundError, WaltzError
from waltz.operators.replicas_shell import Replica
from waltz.record import RecordBatch
from waltz.types import PartitionId

_HEAD: Final = struct.Struct(">8si16siqq12xI")
_RECORD: Final = struct.Struct(">q16siiI")
_FRAME_ROW: Final = struct.Struct(">qiii32s")
_BLOCK_ROW: Final = struct.Struct(">q32s")
_LAST: Final = struct.Struct(">ii32sI8s")

OBJECT_FILE_BYTES_MAX: Final = 66 * 1024 * 1024
"""Bytes of an object that are read: 64 MiB of records that do not compress, and a footer."""

MANIFEST_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a manifest that are read."""

RECORD_DATA_BYTES_MAX: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
"""Bytes that are unpacked at a time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. `partition` and `transaction` None: it concerns no single one; the
    transaction is the first one that is concerned."""

    path: str
    text: str
    partition: int | None = None
    transaction: int | None = None

    def __str__(self) -> str:
        where = "" if self.partition is None else f"partition {self.partition}, "
        if self.transaction is not None:
            where += f"transaction {self.transaction}: "
        return f"{where}{self.path}: {self.text}"


@dataclass
class Verification:
    """The outcome: what was looked at and what is wrong; `unknown` is what could not be learnt."""

    manifests: int = 0
    objects: int = 0
    objects_left_out: int = 0
    transactions: int = 0
    byte_count: int = 0
    orphans: int = 0
    compared: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> bool | None:
        """True: all that was looked at is right; False: something is wrong; None: nothing is known
        to be wrong, and not everything could be learnt."""
        if self.findings:
            return False
        return None if self.unknown else True


@dataclass(frozen=True, slots=True)
class NamedObject:
    """An object as a manifest names it."""

    path: str
    partition: int
    first: int
    end: int
    byte_count: int
    raw_count: int
    footer_at: int
    digest: str
    footer_digest: str
    records_digest: str


def named_objects(target: Target, result: Verification) -> tuple[str, list[NamedObject]]:
    """Read all manifests and return the cluster's key and the objects that they name in the end;
    what is wrong with manifests goes into `result`."""
    try:
        head = json.loads(target.get("archive.json", 64 * 1024))
        key = str(head["cluster"])
        if head["format"] != 1:
            raise ValueError(f"format {head['format']}")
    except (
        *(ValueError, KeyError, TypeError, RecursionError),
        *(NotFoundError, ArchiveDamagedError),
    ) as error:
        result.findings.append(Finding("archive.json", f"it cannot be read: {error}"))
        return "", []
    # Read before the listing: an archiver that commits meanwhile writes a manifest, then the hint.
    hint = _hint_of(target)
    numbers = sorted(
        int(name)
        for each in target.list("manifests")
        if (name := each.path.rpartition("/")[2].removesuffix(".json")).isdigit()
    )
    objects: dict[str, NamedObject] = {}
    digests: list[str] = []
    for expected, number in enumerate(numbers):
        path = f"manifests/{number:020d}.json"
        if number != expected:
            result.findings.append(
                Finding(f"manifests/{expected:020d}.json", "it is lost; later manifests are there")
            )
            break
        try:
            data = target.get(path, MANIFEST_FILE_BYTES_MAX)
            document = json.loads(data)
            if document["cluster"] != key or document["number"] != number:
                raise ValueError(f"it is manifest {document['number']} of {document['cluster']}")
            if document["previous"] != (digests[-1] if digests else None):
                raise ValueError("the digest of the manifest before it is another one")
            objects = _after(objects, document, number)
        except (
            *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
            WaltzError,
        ) as error:
            result.findings.append(Finding(path, f"{error}"))
            break
        digests.append(sha256(data).hexdigest())
        result.manifests += 1
    else:
        _expect_hint(hint, result, digests)
    return key, sorted(objects.values(), key=lambda each: (each.partition, each.first))


def _hint_of(target: Target) -> bytes | None:
    try:
        return target.get("manifests/hint", 128)
    except (NotFoundError, ArchiveDamagedError):
        return None


def _expect_hint(hint: bytes | None, result: Verification, digests: Sequence[str]) -> None:
    """The hint tells whether the last manifests are lost or were changed."""
    if hint is None:
        return
    number, _, digest = hint.strip().partition(b" ")
    if not number.isdigit():
        result.findings.append(Finding("manifests/hint", "it has no number"))
    elif int(number) >= len(digests):
        result.findings.append(
            Finding("manifests/hint", f"manifest {int(number)} was written and is lost")
        )
    elif digests[int(number)] != digest.decode("ascii", "replace"):
        result.findings.append(
            Finding("manifests/hint", f"manifest {int(number)} has another digest than it names")
        )


def _after(
    objects: dict[str, NamedObject], document: dict[str, Any], number: int
) -> dict[str, NamedObject]:
    """Return the objects after one more manifest. Raises ValueError: their transactions have a gap,
    or a manifest that tells everything tells something else than those before it."""
    told = {
        each["path"]: NamedObject(
            each["path"],
            each["partition"],
            each["first"],
            each["end"],
            each["bytes"],
            each["raw_bytes"],
            each["footer_at"],
            each["sha256"],
            each["footer_sha256"],
            each["records_sha256"],
        )
        for each in document["files"]
    }
    found = {path: each for path, each in objects.items() if path not in document["removed"]}
    found.update(told)
    if document["full"]:
        if found.keys() != told.keys() or any(told[path] != found[path] for path in told):
            raise ValueError(f"manifest {number} does not tell what those before it told")
        found = told
    ends: dict[int, int] = {}
    for each in sorted(found.values(), key=lambda each: (each.partition, each.first)):
        if each.first != ends.get(each.partition, 0) or each.end <= each.first:
            raise ValueError(
                f"partition {each.partition}: {each.path} begins at {each.first}; expected"
                f" {ends.get(each.partition, 0)}"
            )
        ends[each.partition] = each.end
    for each in objects.values():
        if ends.get(each.partition, 0) < each.end:
            raise ValueError(f"partition {each.partition} has lost transactions")
    return found


def judged_object(target: Target, key: str, named: NamedObject) -> Iterator[Finding]:
    """Yield what is wrong with an object; the first transaction of it that is concerned, if it is
    known, else its first one. Raises WaltzError: it could not be read."""

    def finding(text: str, transaction: int = named.first) -> Finding:
        return Finding(named.path, text, named.partition, transaction)

    try:
        data = target.get(named.path, OBJECT_FILE_BYTES_MAX)
    except NotFoundError:
        yield finding("it is lost")
        return
    except ArchiveDamagedError as error:
        yield finding(str(error))
        return
    is_right = sha256(data).hexdigest() == named.digest and len(data) == named.byte_count
    wrong = _wrong_inside(data, key, named)
    if wrong is not None:
        yield finding(*wrong)
    elif not is_right:
        yield finding("its digest is wrong, its records are right")


def _wrong_inside(data: bytes, key: str, named: NamedObject) -> tuple[str, int] | None:
    """Return what is wrong with the bytes of an object, and from which transaction on."""
    body, footer = data[64 : named.footer_at], data[named.footer_at :]
    first = named.first
    if len(data) < 64 or _head_of(data) != (key, named.partition, named.first, named.end):
        return "its header is another object's, or damaged", first
    records = Records(named.first)
    digest = sha256()
    try:
        for piece in _unpacked(body):
            digest.update(piece)
            records.take(piece)
            if records.byte_count > named.raw_count:
                return f"it has more than {named.raw_count} bytes of records", records.position
        records.finish()
    except ValueError as error:
        return str(error), records.position
    if records.position != named.end:
        return f"its records end before {records.position}", records.position
    if digest.hexdigest() != named.records_digest:
        return "its records check out and are not those that were archived", first
    if sha256(footer).hexdigest() != named.footer_digest:
        return "its footer is wrong, its records are right", first
    return _wrong_footer(data, named)


def _wrong_footer(data: bytes, named: NamedObject) -> tuple[str, int] | None:
    """Return how the table at the end differs from what lies there."""
    footer = data[named.footer_at :]
    if len(footer) < 64 + _LAST.size or footer[:64] != data[:64]:
        return "its footer is too short or repeats another header", named.first
    frames, blocks, records_digest, checksum, magic = _LAST.unpack(footer[-_LAST.size :])
    table = footer[64 : -_LAST.size]
    if (
        magic != b"CRAZTLAW"
        or records_digest.hex() != named.records_digest
        or checksum != crc32(footer[:-12])
        or frames < 1
        or blocks < 1
        or len(table) != frames * _FRAME_ROW.size + blocks * _BLOCK_ROW.size
    ):
        return "the end of its footer is wrong", named.first
    place, position = 64, named.first
    for offset, stored, raw, count, digest in _FRAME_ROW.iter_unpack(
        table[: frames * _FRAME_ROW.size]
    ):
        piece = data[offset : offset + stored]
        if offset != place or sha256(piece).digest() != digest:
            return f"the row of the frame at byte {offset} is wrong", position
        inside = Records(position)
        try:
            for part in _unpacked(piece):
                inside.take(part)
            inside.finish()
        except ValueError as error:
            return f"the frame at byte {offset}: {error}", position
        if (inside.byte_count, inside.position - position) != (raw, count):
            return f"the row of the frame at byte {offset} counts wrongly", position
        place, position = offset + stored, inside.position
    if place != named.footer_at or position != named.end:
        return "the rows of its frames do not cover it", position
    return None


def _head_of(data: bytes) -> tuple[str, int, int, int] | None:
    from uuid import UUID

    magic, version, key, partition, first, count, checksum = _HEAD.unpack_from(data)
    if (magic, version, checksum) != (b"WALTZARC", 1, crc32(data[:60])) or any(data[48:60]):
        return None
    return str(UUID(bytes=key)), partition, first, first + count


def _unpacked(body: bytes) -> Iterator[bytes]:
    """Yield what frames hold, in pieces. Raises ValueError: these are no frames."""
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
        io.BytesIO(body), read_across_frames=True
    )
    try:
        while piece := reader.read(PIECE_BYTES):
            yield piece
    except zstandard.ZstdError as error:
        raise ValueError(f"its frames are damaged: {error}") from None


class Records:
    """Takes bytes piece by piece and checks each record: its ID, its length, both checksums."""

    def __init__(self, first: int) -> None:
        self.position = first
        self.byte_count = 0
        self._rest = b""

    def take(self, piece: bytes) -> None:
        """Raises ValueError: the record `position` does not check out."""
        self.byte_count += len(piece)
        data = self._rest + piece
        place = 0
        while len(data) - place >= 40:
            found, _, _, length, data_checksum = _RECORD.unpack_from(data, place)
            if found != self.position or not 0 <= length <= RECORD_DATA_BYTES_MAX:
                raise ValueError(
                    f"record {found} of {length} bytes is in the place of {self.position}"
                )
            end = place + 36 + length
            if end + 4 > len(data):
                break
            if crc32(data[place + 36 : end]) != data_checksum:
                raise ValueError("the checksum of its data is wrong")
            if crc32(data[place:end]) != int.from_bytes(data[end : end + 4]):
                raise ValueError("the checksum of the record is wrong")
            place = end + 4
            self.position += 1
        self._rest = data[place:]

    def finish(self) -> None:
        if self._rest:
            raise ValueError("the record is cut short")


def verify(
    target: Target,
    *,
    chosen: Callable[[NamedObject], bool] = lambda each: True,
    log: ArchivedLog | None = None,
    replicas: bool = False,
    progress: Callable[[int], None] = lambda count: None,
    announce: Callable[[int], None] = lambda total: None,
) -> Verification:
    """Look at all manifests and at the chosen objects; compare these with `log`, or with each of
    its replicas. `announce` gets the bytes of what will be read, `progress` those done.

    Raises ArchiveUnreachableError; ConfigurationError.
    """
    result = Verification()
    key, objects = named_objects(target, result)
    looked_at = [each for each in objects if chosen(each)]
    result.objects_left_out = len(objects) - len(looked_at)
    announce(sum(each.byte_count for each in looked_at))
    if log is not None and key and str(log.cluster_key) != key:
        result.findings.append(
            Finding("archive.json", f"it has the log of {key}; the cluster is {log.cluster_key}")
        )
        return result
    listed = {each.path for each in target.list("log")}
    result.orphans = len(listed - {each.path for each in objects})
    gone: list[tuple[NamedObject, list[Finding]]] = []
    for named in looked_at:
        found = list(judged_object(target, key, named))
        progress(named.byte_count)
        if found and not target.exists(named.path):
            gone.append((named, found))
            continue
        if log is not None and not found:
            found = list(_compared(target, log, replicas, named, result))
        _count(result, named, found)
    replaced = _replaced(target) if gone else lambda named: False
    for named, found in gone:
        if replaced(named):
            result.unknown.append(f"{named.path} was replaced by a larger object meanwhile")
        else:
            _count(result, named, found)
    return result


def _count(result: Verification, named: NamedObject, found: Sequence[Finding]) -> None:
    result.findings += found
    result.objects += 1
    result.transactions += named.end - named.first
    result.byte_count += named.byte_count


def _replaced(target: Target) -> Callable[[NamedObject], bool]:
    """Return what tells whether no manifest names an object any more: those that were joined into
    a larger one are removed a day later."""
    now = Verification()
    _, objects = named_objects(target, now)
    known = frozenset(objects)
    return lambda named: not now.findings and named not in known


def _compared(
    target: Target, log: ArchivedLog, replicas: bool, named: NamedObject, result: Verification
) -> Iterator[Finding]:
    partition = PartitionId(named.partition)
    sources: list[Replica | None] = [None]
    if replicas:
        sources = list(log.replicas(partition))
        if not sources:
            result.unknown.append(f"no replica of partition {partition} is known to be current")
    for source in sources:
        name = "the log" if source is None else str(source.replica_id)
        digest = sha256()
        try:
            for batch in log.read(source, partition, named.first, named.end):
                digest.update(batch.block)
        except NotFoundError as error:
            yield Finding(named.path, f"{name} has less: {error}", partition, named.first)
            continue
        except WaltzError as error:
            result.unknown.append(f"{name} could not be read: {error}")
            continue
        if name not in result.compared:
            result.compared.append(name)
        if digest.hexdigest() != named.records_digest:
            where = first_different(target, log, named, source)
            yield Finding(named.path, f"{name} holds another record", partition, where)


def first_different(
    target: Target, log: ArchivedLog, named: NamedObject, source: Replica | None
) -> int | None:
    """Return the first transaction of a sound object whose record differs from that of a copy of
    the log; None: there is none."""
    kept = b"".join(_unpacked(target.get(named.path, OBJECT_FILE_BYTES_MAX)[64 : named.footer_at]))
    place = 0
    batches: Iterator[RecordBatch] = log.read(
        source, PartitionId(named.partition), named.first, named.end
    )
    for batch in batches:
        if kept[place : place + len(batch.block)] == batch.block:
            place += len(batch.block)
            continue
        for index in range(batch.count):
            record = batch.block[int(batch.offsets[index]) : int(batch.offsets[index + 1])]
            if kept[place : place + len(record)] != record:
                return int(batch.first_transaction_id) + index
            place += len(record)
    return None
