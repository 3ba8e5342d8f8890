"""An archive opened for reading: what is archived, and its records, each byte checked.

Owns how an archive is opened and read. Nothing here writes. Always: bytes are handed out only if
their digest is the one that a chain of digests, from the last manifest on, names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from uuid import UUID

from waltz.archive.archive_target import Target, open_target
from waltz.archive.log_object import Footer, Frame, cut, decode_footer, unpacked
from waltz.archive.manifest import (
    FULL_EVERY,
    HEAD_BYTES_MAX,
    MANIFEST_BYTES_MAX,
    ArchivedFile,
    Contents,
    Cut,
    TimeMark,
    decode_head,
    decode_manifest,
    digest_of,
    following,
    manifest_path,
)
from waltz.errors import (
    ArchiveDamagedError,
    ConfigurationError,
    CorruptionError,
    NotFoundError,
)
from waltz.types import PartitionId, TransactionId

__all__ = [
    "Archive",
    "ArchivedPartition",
    "Cut",
    "TimeMark",
    "open_archive",
]

HEAD: Final = "archive.json"
HINT: Final = "manifests/hint"
"""The number of some manifest, at most a few behind the last, and that manifest's SHA-256. Without
it an opening takes longer, and nobody can tell whether the last manifests are lost or changed."""

HINT_BYTES_MAX: Final = 128
HINT_DIGITS_MAX: Final = 18
"""Digits of the number in the hint."""

READERS_MAX: Final = 16
"""Manifests read at a time."""

READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of adjoining frames that are read in one request, unless a single frame is larger."""


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """A partition of an archive: its transactions 0 to `end` - 1, and the objects with them."""

    partition_id: PartitionId
    end: TransactionId
    files: tuple[ArchivedFile, ...]


class Archive:
    """The state of an archive when it was opened. Later manifests do not change it."""

    def __init__(self, target: Target, contents: Contents) -> None:
        self.contents = contents
        self._target = target
        self._footer: tuple[str, Footer] | None = None

    @property
    def url(self) -> str:
        return self._target.url

    @property
    def cluster_key(self) -> UUID:
        """The cluster whose log is archived."""
        return self.contents.cluster_key

    @property
    def partitions(self) -> Mapping[PartitionId, ArchivedPartition]:
        """The partitions of which something is archived."""
        return {
            each: ArchivedPartition(each, files[-1].end, files)
            for each, files in sorted(self.contents.files.items())
            if files
        }

    @property
    def cuts(self) -> Mapping[str, Cut]:
        """The named cuts: vectors of marks that all held at one instant."""
        return self.contents.cuts

    @property
    def coordinator_nodes(self) -> Mapping[str, bytes]:
        """The content of each node of the coordinator, by its path below the cluster's root, as of
        the last manifest that has it. A node without content has none here either: empty bytes."""
        return self.contents.nodes

    def time_marks(self, partition_id: int) -> Sequence[TimeMark]:
        """Return when transactions were committed, ascending: each one by its time, or before."""
        return self.contents.time_marks.get(PartitionId(partition_id), ())

    def end(self, partition_id: int) -> TransactionId:
        """Return the first transaction that is not archived."""
        return self.contents.end(PartitionId(partition_id))

    def blocks(self, partition_id: int, first: int, end: int) -> Iterator[bytes]:
        """Yield the transactions `first` to `end` - 1: whole records exactly as they are on disk.

        A piece has at most 1 MiB, unless a single record is larger. Raises NotFoundError: not all
        of them are archived; ArchiveDamagedError: an object is lost or is not what was archived,
        and everything before it has been yielded; ArchiveUnreachableError.
        """
        if not 0 <= first <= end or end > self.end(partition_id):
            raise NotFoundError(
                f"{self.url} has transactions 0 to {self.end(partition_id) - 1} of partition"
                f" {partition_id}; asked for {first} to {end - 1}"
            )
        contents, position = self.contents, first
        while position < end:
            files = contents.files.get(PartitionId(partition_id), ())
            file = next(each for each in files if each.first <= position < each.end)
            try:
                yield from self._file_blocks(file, position, min(end, file.end))
            except ArchiveDamagedError as error:
                contents = self._replaced(file, error)
                position = max(position, file.first if error.first is None else error.first)
            else:
                position = file.end

    def _replaced(self, file: ArchivedFile, error: ArchiveDamagedError) -> Contents:
        """Return what is archived now, if it has another object in the place of one that is lost:
        objects that were joined into a larger one are removed a day later. Raises `error`."""
        try:
            contents = read_contents(self._target, self.contents)
        except ArchiveDamagedError:
            raise error from None
        partition_id = PartitionId(file.partition_id)
        if file in contents.files.get(partition_id, ()) or contents.end(partition_id) < file.end:
            raise error
        return contents

    def _file_blocks(self, file: ArchivedFile, first: int, end: int) -> Iterator[bytes]:
        for frame, _, raw in self.frames(file, first, end):
            try:
                yield cut(frame, raw, first, end)
            except CorruptionError as error:
                raise self._damaged(file, max(first, frame.first), end, error) from error

    def frames(
        self, file: ArchivedFile, first: int, end: int
    ) -> Iterator[tuple[Frame, bytes, bytes]]:
        """Yield the frames that hold the transactions `first` to `end` - 1 of an object, of which
        it has some: the frame, its bytes as they are kept, and its records.

        Raises ArchiveDamagedError, ArchiveUnreachableError as `blocks`.
        """
        position = first
        try:
            frames = [
                each for each in self.footer(file).frames if each.first < end and first < each.end
            ]
            while frames:
                start = frames[0].offset
                count = 1
                while (
                    count < len(frames)
                    and frames[count].offset + frames[count].byte_count - start <= READ_BYTES_MAX
                ):
                    count += 1
                some, frames = frames[:count], frames[count:]
                stop = some[-1].offset + some[-1].byte_count
                found = self._target.get_range(file.path, start, stop - start)
                for each in some:
                    begin = each.offset - start
                    stored = found[begin : begin + each.byte_count]
                    yield each, stored, unpacked(each, stored)
                    position = min(end, each.end)
        except (CorruptionError, NotFoundError) as error:
            raise self._damaged(file, position, end, error) from error

    def footer(self, file: ArchivedFile) -> Footer:
        """Return the table of an object, checked. Raises ArchiveDamagedError."""
        if self._footer is not None and self._footer[0] == file.path:
            return self._footer[1]
        try:
            data = self._target.get_range(
                file.path, file.footer_offset, file.byte_count - file.footer_offset
            )
            if sha256(data).hexdigest() != file.footer_digest:
                raise CorruptionError("the digest of its footer is wrong")
            found = decode_footer(data)
            told = (self.cluster_key, file.partition_id, file.first, file.end)
            if tuple(found.head) != told or found.raw_digest.hex() != file.raw_digest:
                raise CorruptionError(f"its footer says {found.head}")
        except (CorruptionError, NotFoundError) as error:
            raise self._damaged(file, file.first, file.end, error) from error
        self._footer = file.path, found
        return found

    def _damaged(
        self, file: ArchivedFile, first: int, end: int, error: Exception
    ) -> ArchiveDamagedError:
        if isinstance(error, ArchiveDamagedError):
            return error
        reason = "it is lost" if isinstance(error, NotFoundError) else str(error)
        return ArchiveDamagedError(
            f"{self.url}/{file.path} is damaged, transactions {first} to {end - 1} of partition"
            f" {file.partition_id}: {reason}; `waltz archive repair` writes it anew from the log",
            file.path,
            file.partition_id,
            first,
            end,
        )


def open_archive(url: str) -> Archive:
    """Open the archive at `file:///directory` or `s3://bucket/prefix`.

    Raises ConfigurationError: there is none; ArchiveDamagedError: its manifests do not join up;
    ArchiveUnreachableError.
    """
    return read_archive(open_target(url))


def read_archive(target: Target) -> Archive:
    """Open the archive that is kept there. Raises as `open_archive`."""
    try:
        cluster_key = decode_head(target.get(HEAD, HEAD_BYTES_MAX))
    except NotFoundError:
        raise ConfigurationError(
            f"there is no archive at {target.url}; `waltz archive run` makes one"
        ) from None
    except ArchiveDamagedError:
        raise
    except CorruptionError as error:
        raise ArchiveDamagedError(f"{target.url}: {error}", HEAD) from error
    return Archive(target, read_contents(target, Contents(cluster_key)))


def read_contents(target: Target, known: Contents) -> Contents:
    """Return what is archived now; manifests up to `known` are not read again.

    Raises ArchiveDamagedError, ArchiveUnreachableError.
    """
    hint, digest = read_hint(target)
    last = _last_number(target, known.number, hint)
    if last == known.number:
        return known
    full = last - last % FULL_EVERY
    first = max(known.number + 1, full)
    contents = known if first == known.number + 1 else Contents(known.cluster_key)
    path = ""
    try:
        with ThreadPoolExecutor(READERS_MAX) as pool:
            paths = [manifest_path(number) for number in range(first, last + 1)]
            texts = pool.map(lambda path: target.get(path, MANIFEST_BYTES_MAX), paths)
            for number, data in enumerate(texts, first):
                path = manifest_path(number)
                manifest = decode_manifest(data, known.cluster_key, number)
                if number == full and not manifest.is_full:
                    raise CorruptionError(f"{path} does not tell everything")
                if number == hint and digest_of(data) != digest:
                    raise CorruptionError(
                        f"{path} is not the one that {HINT} names; delete {HINT} only if the"
                        " manifest is right"
                    )
                contents = following(contents, manifest, digest_of(data))
    except ArchiveDamagedError:
        raise
    except NotFoundError as error:
        raise ArchiveDamagedError(f"{target.url}: a manifest is lost: {error}", path) from error
    except CorruptionError as error:
        raise ArchiveDamagedError(f"{target.url}: {error}", path) from error
    return contents


def _last_number(target: Target, known: int, hint: int) -> int:
    """Return the number of the last manifest, -1 for none, with few requests: from the hint on in
    growing steps, then by halves. Raises ArchiveDamagedError: a manifest that there was is gone."""
    low = max(known, hint)
    if low >= 0 and low != known and not target.exists(manifest_path(low)):
        raise ArchiveDamagedError(
            f"{target.url}: {manifest_path(low)} was written and is lost, or {HINT} was changed;"
            " bring the manifest back from a copy or a version of the bucket; delete the hint only"
            " if it is wrong",
            manifest_path(low),
        )
    step = 1
    while target.exists(manifest_path(low + step)):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if target.exists(manifest_path(middle)):
            low = middle
        else:
            high = middle
    return low


def encode_hint(number: int, digest: str) -> bytes:
    """Return the content of `HINT`."""
    return f"{number} {digest}\n".encode()


def read_hint(target: Target) -> tuple[int, str]:
    """Return the number and the SHA-256 in the hint; -1: there is no usable one."""
    try:
        text = target.get(HINT, HINT_BYTES_MAX).decode("ascii", "replace")
    except (NotFoundError, ArchiveDamagedError):
        return -1, ""
    number, _, digest = text.strip().partition(" ")
    is_usable = number.isascii() and number.isdigit() and len(number) <= HINT_DIGITS_MAX
    return (int(number), digest) if is_usable else (-1, "")
