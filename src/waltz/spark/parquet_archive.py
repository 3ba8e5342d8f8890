"""An archive: the log, verbatim, in Parquet files that any program can open, and their proof.

    DIRECTORY/archive.json                          format, cluster key
    DIRECTORY/manifests/00000000000000000007.json   files added by the eighth commit, their history
    DIRECTORY/partition=P/FIRST-END-xxxxxxxx.parquet

A file exists for readers once a manifest names it. Manifests are only ever added, each under the
next number, which one of several writers gets; so there is one history, and each manifest continues
where the previous ones have ended. Files that a killed writer leaves behind are in no manifest and
are swept. Owns the directory; knows neither Spark nor the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from waltz import Histories
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    NotFoundError,
    VersionConflictError,
)
from waltz.spark.archive_location import DELTA, ArchiveLocation
from waltz.spark.block_digests import Block
from waltz.spark.codes import ARCHIVE_CONFLICT, INVALID_ARCHIVE, OUTSIDE_LOG
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import FIRST_TRANSACTION_ID, TransactionRange
from waltz.types import PartitionId, TransactionId

FORMAT: Final = 1
HEAD: Final = "archive.json"
MANIFESTS: Final = "manifests"
HISTORY: Final = "history"
"""The key of a manifest that names the history of its files; missing: the first one."""
REMEDY: Final = (
    "Nothing was archived or read. Keep the archive, which has what the log has lost, and archive"
    " into another directory"
)
ORPHAN_SECONDS_MIN: Final = 24 * 3600.0
"""Age in seconds from which a file that no manifest names belongs to no running writer any more."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file: a run of one partition. `path` is below the archive's directory."""

    path: str
    range: TransactionRange
    byte_count: int
    blocks: tuple[Block, ...]

    def encode(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "partition": self.range.partition_id,
            "first": self.range.first,
            "end": self.range.end,
            "bytes": self.byte_count,
            "blocks": [[block.range.first, block.range.end, block.digest] for block in self.blocks],
        }

    @classmethod
    def decode(cls, entry: Mapping[str, Any]) -> ArchivedFile:
        """Return the file of a manifest's entry. Raises KeyError, TypeError, ValueError: not an
        entry."""
        partition_id = PartitionId(int(entry["partition"]))

        def run(first: Any, end: Any) -> TransactionRange:
            return TransactionRange(
                partition_id, TransactionId(int(first)), TransactionId(int(end))
            )

        return cls(
            str(entry["path"]),
            run(entry["first"], entry["end"]),
            int(entry["bytes"]),
            tuple(Block(run(first, end), str(digest)) for first, end, digest in entry["blocks"]),
        )


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of an archive after `commits` commits; files by partition, then in order."""

    commits: int
    files: tuple[ArchivedFile, ...]
    history: UUID | None = None
    """The history of the log as of the last commit; None: the first one."""

    def next_ids(self) -> dict[PartitionId, TransactionId]:
        """Return the next transaction of each archived partition."""
        return {each.range.partition_id: each.range.end for each in self.files}

    def expect_in_log(
        self,
        marks: Mapping[PartitionId, TransactionId],
        histories: Histories,
        directory: ArchiveLocation,
    ) -> None:
        """Check that the log has all that is archived in `directory`.

        Raises HistoryChangedError: it was restored, and has others in the place of some;
        NotFoundError: it has less, and has lost data.
        """
        expect_history(
            histories, self.history, self.next_ids(), who=f"the archive {directory}", remedy=REMEDY
        )
        for partition_id, end in sorted(self.next_ids().items()):
            if partition_id in marks and end > marks[partition_id] + 1:
                raise NotFoundError(
                    f"{OUTSIDE_LOG} partition {partition_id} is archived to transaction {end - 1};"
                    f" its high-water mark is {marks[partition_id]}. The log has lost data"
                )

    def within(self, wanted: TransactionRange) -> list[tuple[ArchivedFile, TransactionRange]]:
        """Return the archived parts of `wanted`, in order, each with its file."""
        found = []
        # The last one that begins at `wanted.first` or before has it, if any has.
        place = bisect_right(self.files, (wanted.partition_id, wanted.first), key=_place)
        for index in range(max(0, place - 1), len(self.files)):
            file = self.files[index]
            held = file.range
            if _place(file) >= (wanted.partition_id, wanted.end):
                break
            if held.partition_id == wanted.partition_id and wanted.first < held.end:
                first, end = max(wanted.first, held.first), min(wanted.end, held.end)
                found.append((file, TransactionRange(wanted.partition_id, first, end)))
        return found


NOTHING_ARCHIVED: Final = Contents(0, ())


class _Following:
    """Joins commits: the files of each must begin where their partitions have ended.

    Takes time linear in the number of files, however many commits they came in.
    """

    def __init__(self, contents: Contents) -> None:
        self.commits = contents.commits
        self.history = contents.history
        self._files = list(contents.files)
        self._next_ids = contents.next_ids()

    def add(self, added: Iterable[ArchivedFile], history: UUID | None) -> None:
        """Take one more commit. Raises CorruptionError as `followed`."""
        for each in sorted(added, key=_place):
            wanted = each.range
            expected = self._next_ids.get(wanted.partition_id, FIRST_TRANSACTION_ID)
            if wanted.first != expected or wanted.first >= wanted.end:
                raise CorruptionError(
                    f"{INVALID_ARCHIVE} {each.path} has {wanted}; the archive continues at"
                    f" {expected}"
                )
            bounds = [wanted.first, *(block.range.end for block in each.blocks)]
            firsts = [block.range.first for block in each.blocks]
            if bounds[:-1] != firsts or bounds[-1] != wanted.end:
                raise CorruptionError(f"{INVALID_ARCHIVE} {each.path}: its blocks are not {wanted}")
            self._next_ids[wanted.partition_id] = wanted.end
            self._files.append(each)
        self.commits += 1
        self.history = history

    def contents(self) -> Contents:
        return Contents(self.commits, tuple(sorted(self._files, key=_place)), self.history)


def followed(
    contents: Contents, added: Iterable[ArchivedFile], history: UUID | None = None
) -> Contents:
    """Return `contents` with one more commit, of `history`; None: the first one.

    Raises CorruptionError: a file does not begin where its partition has ended, or its blocks are
    not its run.
    """
    following = _Following(contents)
    following.add(added, history)
    return following.contents()


def _place(file: ArchivedFile) -> tuple[PartitionId, TransactionId]:
    return file.range.partition_id, file.range.first


class Archive:
    """An archive in a directory of this machine, or of one that all of a cluster's machines see."""

    def __init__(self, directory: Path, cluster_key: UUID) -> None:
        self.directory = directory
        self.cluster_key = cluster_key
        self._identity = self._identity_of_now()

    @classmethod
    def open(cls, directory: Path) -> Archive:
        """Open an archive. Raises ConfigurationError: there is no archive, or one of another
        format."""
        path = directory / HEAD
        if not path.exists() and (directory / "_delta_log").exists():
            raise ConfigurationError(
                f"{INVALID_ARCHIVE} {directory} holds a Delta table: write {DELTA}{directory}"
            )
        try:
            head = json.loads(path.read_text())
            if head["format"] != FORMAT:
                raise ConfigurationError(
                    f"{INVALID_ARCHIVE} {path} has format {head['format']}; this release reads"
                    f" {FORMAT}"
                )
            return cls(directory, UUID(head["cluster"]))
        except OSError as error:
            raise ConfigurationError(
                f"{INVALID_ARCHIVE} {directory} holds no archive: {error.strerror}"
            ) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"{INVALID_ARCHIVE} {path} is damaged: {error!r}") from error

    @classmethod
    def create(cls, directory: Path, cluster_key: UUID) -> Archive:
        """Make an archive of the cluster's log, or open the one that is there.

        Raises ConfigurationError: it is another cluster's, or the directory has something else.
        """
        if not (directory / HEAD).exists() and not (directory / "_delta_log").exists():
            if directory.exists() and any(directory.iterdir()):
                raise ConfigurationError(
                    f"{INVALID_ARCHIVE} {directory} has files but no archive; choose an empty"
                    " directory"
                )
            (directory / MANIFESTS).mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another run makes it at the same moment
                _write_new(directory / HEAD, {"format": FORMAT, "cluster": str(cluster_key)})
        archive = cls.open(directory)
        archive.expect_cluster(cluster_key)
        return archive

    def expect_cluster(self, cluster_key: UUID) -> None:
        """Check the archive's cluster. Raises ConfigurationError: it has another cluster's log."""
        expect_cluster_of(self.directory, self.cluster_key, cluster_key)

    def contents(self) -> Contents:
        """Return what is archived now. Raises CorruptionError: the manifests do not join up."""
        following = _Following(Contents(0, ()))
        while True:
            path = self._manifest(following.commits)
            try:
                text = path.read_text()
            except FileNotFoundError:
                if not self._has_later(following.commits):
                    return following.contents()
                if path.exists():
                    continue  # another run has added it meanwhile
                raise CorruptionError(
                    f"{INVALID_ARCHIVE} {path} is missing; later manifests are there"
                ) from None
            try:
                manifest = json.loads(text)
                files = [ArchivedFile.decode(entry) for entry in manifest["files"]]
                history = UUID(manifest[HISTORY]) if HISTORY in manifest else None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CorruptionError(f"{INVALID_ARCHIVE} {path} is damaged: {error!r}") from error
            following.add(files, history)

    def commit(
        self, before: Contents, added: Sequence[ArchivedFile], history: UUID | None = None
    ) -> Contents:
        """Add files of `history` to `before`, all or none, and return the new contents.

        Their bytes are durable already. Raises VersionConflictError: another writer has committed
        in between, or a rebuild has put another archive here, so these files are not wanted;
        CorruptionError as `followed`.
        """
        contents = followed(before, added, history)
        of = {} if history is None else {HISTORY: str(history)}
        path = self._manifest(before.commits)
        try:
            files = [each.encode() for each in sorted(added, key=_place)]
            _write_new(path, {**of, "files": files}, confirm=self._expect_unreplaced)
        except FileExistsError:
            raise VersionConflictError(
                f"{ARCHIVE_CONFLICT} another run has added to {self.directory}; run again"
            ) from None
        except FileNotFoundError:  # the draft has gone with the archive that it was written to
            self._expect_unreplaced()
            raise
        return contents

    def sweep(self, contents: Contents, *, now: float | None = None) -> list[str]:
        """Remove what killed writers have left and return its names, sorted."""
        known = {each.path for each in contents.files}
        limit = (time.time() if now is None else now) - ORPHAN_SECONDS_MIN
        swept = []
        for path in sorted(self.directory.glob("partition=*/*.parquet*")):
            name = str(path.relative_to(self.directory))
            if name not in known and path.stat().st_mtime < limit:
                path.unlink()
                swept.append(name)
        return swept

    def _manifest(self, number: int) -> Path:
        return self.directory / MANIFESTS / f"{number:020d}.json"

    def _identity_of_now(self) -> tuple[int, int, int] | None:
        """Return what tells the archive that is here now from another one; None: there is none."""
        try:
            found = (self.directory / HEAD).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    def _expect_unreplaced(self) -> None:
        if self._identity_of_now() != self._identity:
            raise replaced(self.directory)

    def _has_later(self, count: int) -> bool:
        """Return whether there is a manifest of that number or a later one."""
        numbers = (
            int(path.stem)
            for path in (self.directory / MANIFESTS).glob("*.json")
            if path.stem.isdigit()
        )
        return max(numbers, default=-1) >= count


def replaced(location: ArchiveLocation) -> VersionConflictError:
    """Return the error of a run whose archive has another one in its place now."""
    return VersionConflictError(f"{ARCHIVE_CONFLICT} {location} was replaced meanwhile; run again")


def expect_cluster_of(location: ArchiveLocation, archived: UUID, cluster_key: UUID) -> None:
    """Raise ConfigurationError: the archive is of another cluster."""
    if archived != cluster_key:
        raise ConfigurationError(
            f"{INVALID_ARCHIVE} {location} has the log of cluster {archived}, not of cluster"
            f" {cluster_key}; give that cluster's address, or another directory"
        )


def _write_new(
    path: Path, content: Mapping[str, Any], confirm: Callable[[], None] = lambda: None
) -> None:
    """Make the file at once, whole and durable. `confirm` takes a last look at the directory, in
    which the draft is by then. Raises FileExistsError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with draft.open("x") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        confirm()
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Return once names made in the directory are durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
