"""A bridge's progress: one file, replaced as a whole, that belongs to one cluster.

Owns the file's format and its lock. The file names, per partition, the next transaction to post and
the history of which those before it were posted; and what an operator skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from waltz.cluster.histories import Histories
from waltz.errors import (
    ClientAheadError,
    ConfigurationError,
    CorruptionError,
    DirectoryInUseError,
    HistoryChangedError,
)
from waltz.host import Disk
from waltz.types import PartitionId

FORMAT: Final = 1

PROGRESS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size up to which a file is read; a partition takes about 80 bytes."""

SKIPS_KEPT_MAX: Final = 1_000
"""Skipped ranges that the file names; of more the oldest are left out, and counted."""

REASON_CHARACTERS_MAX: Final = 500
"""Length of the reason for which a range was skipped."""


WHO: Final = "the bridge"
REMEDY: Final = (
    "The receiver has them. Nothing was posted since. Once it is decided what the receiver does"
    " about them, name another file in bridge.progress, with which the bridge begins anew, or bring"
    " back a copy of the file of before the first of them"
)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """All wanted transactions before `next_id` were posted, as `history` has them, or skipped."""

    next_id: int
    history: UUID


@dataclass(frozen=True, slots=True)
class Skip:
    """A range that an operator has decided not to post; `at_milliseconds` since 1970."""

    partition_id: int
    first: int
    last: int
    reason: str
    at_milliseconds: int


@dataclass(frozen=True, slots=True)
class BridgeProgress:
    """The progress of all partitions. `forgotten_skips` counts those that the file has no room
    for."""

    cluster_key: UUID
    partitions: Mapping[int, PartitionProgress]
    skips: tuple[Skip, ...] = ()
    forgotten_skips: int = 0

    def reaching(self, moved: Mapping[int, PartitionProgress]) -> BridgeProgress:
        return replace(self, partitions={**self.partitions, **moved})

    def skipping(self, skip: Skip, history: UUID) -> BridgeProgress:
        """Return the progress after `skip`. Raises ConfigurationError: the range does not begin
        with the next transaction to post, or is none."""
        found = self.partitions.get(skip.partition_id)
        if found is None:
            raise ConfigurationError(f"the bridge has not begun with partition {skip.partition_id}")
        if skip.first != found.next_id or skip.last < skip.first:
            raise ConfigurationError(
                f"partition {skip.partition_id} waits at transaction {found.next_id}: a range to"
                f" skip begins there, and {skip.first} to {skip.last} does not, or is empty"
            )
        skips = (*self.skips, skip)
        moved = {skip.partition_id: PartitionProgress(skip.last + 1, history)}
        return replace(
            self.reaching(moved),
            skips=skips[-SKIPS_KEPT_MAX:],
            forgotten_skips=self.forgotten_skips + max(0, len(skips) - SKIPS_KEPT_MAX),
        )

    def check_cluster(self, cluster_key: UUID, path: str) -> None:
        """Raises HistoryChangedError: the file is of another cluster."""
        if self.cluster_key != cluster_key:
            raise HistoryChangedError(
                f"the progress in {path} is of cluster {self.cluster_key}, and cluster"
                f" {cluster_key} answers. Nothing was posted. Name the bridge's cluster, or another"
                " file in bridge.progress, with which the bridge begins anew"
            )


def check_history(
    histories: Histories,
    partition_id: PartitionId,
    history: UUID,
    posted: int,
    remedy: str = REMEDY,
) -> None:
    """Raises HistoryChangedError: the transactions through `posted`, of `history`, are not those of
    the log today."""
    histories.check(partition_id, history, posted, who=WHO, another_log=remedy, abandoned=remedy)


def check_place(
    histories: Histories,
    partition_id: PartitionId,
    progress: PartitionProgress,
    mark: int,
    remedy: str = REMEDY,
) -> None:
    """Raises HistoryChangedError: what was posted is not what the log has; ClientAheadError: it is
    more than the log has, which ends with `mark`."""
    posted = progress.next_id - 1
    check_history(histories, partition_id, progress.history, posted, remedy)
    if posted > mark:
        raise ClientAheadError(
            f"the bridge has posted partition {partition_id} through transaction {posted}, and the"
            f" log of cluster {histories.cluster_key} ends with {mark}: one of the two was set"
            f" back. {remedy}"
        )


def progress_text(progress: BridgeProgress) -> bytes:
    value = {
        "format": FORMAT,
        "cluster": str(progress.cluster_key),
        "partitions": {
            str(each): {"next": found.next_id, "history": str(found.history)}
            for each, found in sorted(progress.partitions.items())
        },
        "skips": [{"partition": each.partition_id} | skip_value(each) for each in progress.skips],
        "forgotten_skips": progress.forgotten_skips,
    }
    return json.dumps(value, indent=1).encode() + b"\n"


def parse_progress(text: bytes, path: str) -> BridgeProgress:
    """Raises CorruptionError: that is no progress; ConfigurationError: of a later format."""
    try:
        value: dict[str, Any] = json.loads(text)
        if value["format"] != FORMAT:
            raise ConfigurationError(
                f"{path} has format {value['format']!r}, and this release knows {FORMAT}: a later"
                " release wrote it"
            )
        return BridgeProgress(
            UUID(value["cluster"]),
            {
                natural(int(each)): PartitionProgress(
                    natural(found["next"]), UUID(found["history"])
                )
                for each, found in value["partitions"].items()
            },
            tuple(skip_of(natural(each["partition"]), each) for each in value["skips"]),
            natural(value["forgotten_skips"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptionError(
            f"{path} is no progress of a bridge ({error!r}). Bring back a copy of it: transactions"
            " since then are posted again. A bridge that begins anew posts from bridge.start on"
        ) from error


def skip_value(skip: Skip) -> dict[str, Any]:
    """Return a skip as JSON has it, without its partition."""
    return {
        "first": skip.first,
        "last": skip.last,
        "reason": skip.reason,
        "at": skip.at_milliseconds,
    }


def skip_of(partition_id: int, value: Mapping[str, Any]) -> Skip:
    """Return the skip that JSON has. Raises ValueError, KeyError, TypeError: it is none."""
    return Skip(
        partition_id,
        natural(value["first"]),
        natural(value["last"]),
        str(value["reason"]),
        natural(value["at"]),
    )


def natural(value: object) -> int:
    """Return a number of JSON. Raises ValueError: it is none, or is below 0."""
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


class ProgressFile:
    """The file at `path`, on `disk`. One process at a time writes it: who holds its lock."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._lock_path = f"{path}.lock"
        self._directory = str(Path(path).absolute().parent)

    def lock(self) -> Callable[[], None]:
        """Return what ends the lock; so does the end of the process. Raises DirectoryInUseError: a
        bridge, or a skip, works with the file; ConfigurationError: there can be no lock."""
        path = self._lock_path
        try:
            if not self._disk.exists(path):
                self._disk.open(path, create=True).close()
            return self._disk.lock(path)
        except OSError as error:
            raise ConfigurationError(f"bridge.progress: {error.strerror}: {path}") from error

    def is_locked(self) -> bool:
        """Return whether a process works with the file. Makes no file: one that another user has
        made could not be opened by the bridge. Raises OSError: this user may not ask."""
        if not self._disk.exists(self._lock_path):
            return False
        try:
            self._disk.lock(self._lock_path)()
        except DirectoryInUseError:
            return True
        return False

    def load(self) -> BridgeProgress | None:
        """Return the progress; None: there is no file. Raises CorruptionError; OSError."""
        if not self._disk.exists(self.path):
            return None
        file = self._disk.open_to_read(self.path)
        try:
            size = file.size()
            if size > PROGRESS_BYTES_MAX:
                raise CorruptionError(f"{self.path} has {size:,} bytes: it is no progress")
            text = file.read_at(0, size)
        finally:
            file.close()
        return parse_progress(text, self.path)

    def save(self, progress: BridgeProgress) -> None:
        """Replace the file; durable on return. Raises OSError: the old or the new one is there."""
        path = f"{self.path}.new"
        file = self._disk.open(path, create=not self._disk.exists(path))
        try:
            text = progress_text(progress)
            file.truncate(0)
            file.write_at(0, text)
            file.sync()
        finally:
            file.close()
        self._disk.rename(path, self.path)
        self._disk.sync_directory(self._directory)
