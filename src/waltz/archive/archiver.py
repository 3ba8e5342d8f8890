"""The archiver's decisions: what to copy next, when to commit, what a lost race means.

A machine: `archiver_shell.py` carries out its effects, one at a time, and feeds back what came of
each. Always: a copy ends at or below a high-water mark that the log has told, so nothing is
archived that could be rolled back; a commit names only what was copied on top of the contents that
the commit follows on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from waltz.archive.manifest import ArchivedFile, Contents, TimeMark
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId

MERGED_FILES: Final = 8
"""Objects of one size that are joined into one of the next size: of n transactions each is written
about log8 n times, and an archive has few objects."""

SNAPSHOT_SECONDS: Final = 300.0
"""Interval at which the coordinator's nodes are read."""

SWEEP_SECONDS: Final = 3600.0
"""Interval at which objects that no manifest names are looked for."""

RETRY_SECONDS_MIN: Final = 1.0
"""The first pause after something failed."""

RETRY_SECONDS_MAX: Final = 60.0
"""The longest such pause."""

COMMIT_SECONDS_MAX: Final = 12 * 3600.0
"""Age of a copied object at which it is not committed any more: another archiver may sweep it."""

SEEN_MARKS_MAX: Final = 1_000
"""Marks per partition that are remembered to say how long the archive has been behind."""


# Events


@dataclass(frozen=True, slots=True)
class Opened:
    contents: Contents


@dataclass(frozen=True, slots=True)
class Told:
    """The log's high-water marks, at a time of the wall clock, and the coordinator's nodes if they
    were asked for. `unknown` are partitions whose mark nobody told, with the reason."""

    marks: Mapping[PartitionId, TransactionId]
    wall_milliseconds: int
    nodes: Mapping[str, bytes] | None = None
    unknown: Mapping[PartitionId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copied:
    """An object is there and no manifest names it; these replicas hold exactly its records."""

    file: ArchivedFile
    replicas: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class NotCopied:
    """Nothing of the partition was copied. `is_difference`: two copies of the log differ."""

    partition_id: PartitionId
    reason: str
    is_difference: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    file: ArchivedFile
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    contents: Contents
    wall_milliseconds: int


@dataclass(frozen=True, slots=True)
class RaceLost:
    """Another archiver has committed on top of the same contents."""


@dataclass(frozen=True, slots=True)
class Swept:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The effect that was under way has failed; whether a commit took effect is unknown."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopAsked: ...


Event: TypeAlias = (
    Opened | Told | Copied | NotCopied | Merged | Committed | RaceLost | Swept | Failed | StopAsked
)


# Effects


@dataclass(frozen=True, slots=True)
class Open:
    """Read what is archived now. `known` is what was archived before, None at the beginning."""

    known: Contents | None


@dataclass(frozen=True, slots=True)
class Ask:
    with_nodes: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """Make an object of committed transactions from `first` on, at most to `end` - 1."""

    partition_id: PartitionId
    first: TransactionId
    end: TransactionId


@dataclass(frozen=True, slots=True)
class Merge:
    """Make one object of these adjoining ones."""

    files: tuple[ArchivedFile, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    before: Contents
    files: tuple[ArchivedFile, ...]
    removed: tuple[str, ...] = ()
    time_marks: Mapping[PartitionId, tuple[TimeMark, ...]] = field(default_factory=dict)
    nodes: Mapping[str, bytes] | None = None
    verified: Mapping[PartitionId, tuple[ReplicaId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sweep:
    contents: Contents


Effect: TypeAlias = Open | Ask | Copy | Merge | Commit | Sweep


class Phase(StrEnum):
    OPENING = "opening"
    ASKING = "asking"
    COPYING = "copying"
    COMMITTING = "committing"
    MERGING = "merging"
    SWEEPING = "sweeping"
    WAITING = "waiting"
    CLOSED = "closed"


class Archiver:
    """See the module. Times are seconds of the host's clock."""

    def __init__(
        self,
        *,
        every_seconds: float,
        object_bytes: int,
        partitions: frozenset[PartitionId] | None = None,
        once: bool = False,
    ) -> None:
        """`partitions` None: all that the log has. `once`: close when everything that the log had
        when it was last asked is archived, or something failed."""
        self.phase = Phase.WAITING
        self.deadline: float | None = 0.0
        self.contents: Contents | None = None
        self.marks: dict[PartitionId, TransactionId] = {}
        self.troubles: dict[PartitionId, str] = {}
        """Why the newest of a partition is not archived."""
        self.differences: dict[PartitionId, str] = {}
        """Those of the troubles that say that copies of the log differ."""
        self.trouble: str | None = None
        """Why the last round has failed as a whole, or was not finished; None: it was."""
        self.committed_at: int | None = None
        """The wall clock's milliseconds of the last success: a commit after which nothing was left
        of what the log had told, or a look that found nothing to archive."""
        self.commits = 0
        self.races_lost = 0
        self.failures = 0
        self.swept = 0
        self._every = every_seconds
        self._object_bytes = object_bytes
        self._partitions = partitions
        self._once = once
        self._pause = RETRY_SECONDS_MIN
        self._stopping = False
        self._queue: deque[PartitionId] = deque()
        self._fresh: list[tuple[ArchivedFile, tuple[ReplicaId, ...]]] = []
        self._fresh_since: float | None = None
        self._merged: Merged | None = None
        self._nodes: Mapping[str, bytes] | None = None
        self._nodes_due = 0.0
        self._sweep_due = 0.0
        self._told_at = 0
        self._seen: dict[PartitionId, deque[tuple[float, TransactionId]]] = {}

    @property
    def closed(self) -> bool:
        return self.phase is Phase.CLOSED

    def lag_seconds(self, partition_id: PartitionId, now: float) -> float | None:
        """Return for how long, at least, the first transaction that is not archived has been
        committed; 0 if none is known, None if nothing is known."""
        if self.contents is None or partition_id not in self.marks:
            return None
        end = self.contents.end(partition_id)
        if end > self.marks[partition_id]:
            return 0.0
        return now - next(at for at, mark in self._seen[partition_id] if mark >= end)

    def step(self, events: Sequence[Event], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            if self.phase is not Phase.CLOSED:
                effects += self._take(event, now)
        if self.phase is Phase.WAITING and self.deadline is not None and now >= self.deadline:
            effects += self._begin(now)
        return effects

    def check_invariants(self) -> None:
        assert (self.deadline is not None) == (self.phase is Phase.WAITING)
        ends: dict[PartitionId, int] = {}
        for file, _ in self._fresh:
            assert self.contents is not None
            expected = ends.get(file.partition_id, self.contents.end(file.partition_id))
            assert file.first == expected, "copies continue where the archive ends"
            assert file.end <= self.marks[file.partition_id] + 1, "only what is committed"
            ends[file.partition_id] = file.end

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case StopAsked():
                self._stopping = True
                # A commit under way may take effect: its outcome is waited for, and told.
                return [] if self.phase is Phase.COMMITTING else self._close()
            case Opened(contents):
                self.contents = contents
                return self._ask(now) if not self.marks else self._end_round(now, pause=True)
            case Told():
                return self._plan(event, now)
            case Copied(file, replicas):
                self._fresh.append((file, replicas))
                if self._fresh_since is None:
                    self._fresh_since = now
                self.troubles.pop(file.partition_id, None)
                self.differences.pop(file.partition_id, None)
                return self._next_copy(now)
            case NotCopied(partition_id, reason, is_difference):
                self.troubles[partition_id] = reason
                self.differences.pop(partition_id, None)
                if is_difference:
                    self.differences[partition_id] = reason
                self.failures += 1
                return self._next_copy(now)
            case Merged():
                self._merged = event
                return self._commit(now)
            case Committed(contents, wall_milliseconds):
                return self._go_on_from(contents, wall_milliseconds, now)
            case RaceLost():
                self.races_lost += 1
                self._drop_fresh()
                self.phase = Phase.OPENING
                return self._close() if self._stopping else [Open(self.contents)]
            case Swept(paths):
                self.swept += len(paths)
                return self._end_round(now)
            case Failed(reason):
                return self._fail(reason, now)

    def _begin(self, now: float) -> list[Effect]:
        self.deadline = None
        if self.contents is None:
            self.phase = Phase.OPENING
            return [Open(None)]
        return self._ask(now)

    def _ask(self, now: float) -> list[Effect]:
        self.phase = Phase.ASKING
        return [Ask(with_nodes=now >= self._nodes_due)]

    def _plan(self, told: Told, now: float) -> list[Effect]:
        assert self.contents is not None
        self._told_at = told.wall_milliseconds
        before, differed = self.troubles, self.differences
        self.troubles = {
            each: reason for each, reason in told.unknown.items() if self._is_chosen(each)
        }
        self.differences = {each: differed[each] for each in self.troubles if each in differed}
        if told.nodes is not None:
            self._nodes_due = now + SNAPSHOT_SECONDS
            self._nodes = told.nodes if told.nodes != self.contents.nodes else None
        self._queue.clear()
        for partition_id, mark in sorted(told.marks.items()):
            if not self._is_chosen(partition_id):
                continue
            self._see(partition_id, mark, now)
            end = self.contents.end(partition_id)
            if end > mark + 1:
                # A server that does not know yet that it was replaced may tell too low a mark.
                self.troubles[partition_id] = (
                    f"the archive has transactions to {end - 1}, the log told {mark} as its last;"
                    " if that lasts, the log has lost data"
                )
            elif end <= mark:
                self._queue.append(partition_id)
                # As true as it was until the partition is copied, or is not.
                if partition_id in before:
                    self.troubles[partition_id] = before[partition_id]
                if partition_id in differed:
                    self.differences[partition_id] = differed[partition_id]
        return self._next_copy(now)

    def _is_chosen(self, partition_id: PartitionId) -> bool:
        return self._partitions is None or partition_id in self._partitions

    def _see(self, partition_id: PartitionId, mark: TransactionId, now: float) -> None:
        mark = max(mark, self.marks.get(partition_id, NOTHING))
        self.marks[partition_id] = mark
        seen = self._seen.setdefault(partition_id, deque())
        assert self.contents is not None
        while seen and seen[0][1] < self.contents.end(partition_id):
            seen.popleft()
        if not seen or seen[-1][1] < mark:
            if len(seen) >= SEEN_MARKS_MAX:  # times become coarser, and the first one stays
                seen = self._seen[partition_id] = deque(list(seen)[::2])
            seen.append((now, mark))

    def _next_copy(self, now: float) -> list[Effect]:
        assert self.contents is not None
        if self._queue:
            partition_id = self._queue.popleft()
            self.phase = Phase.COPYING
            end = TransactionId(self.marks[partition_id] + 1)
            return [Copy(partition_id, self.contents.end(partition_id), end)]
        if self._fresh_since is not None and now - self._fresh_since > COMMIT_SECONDS_MAX:
            self._drop_fresh()
            return self._fail("copying took so long that the copies may be swept", now)
        if self._fresh or self._nodes is not None:
            return self._commit(now)
        self.trouble = None
        if not self.troubles:
            self.committed_at = self._told_at
        return self._end_round(now)

    def _commit(self, now: float) -> list[Effect]:
        assert self.contents is not None
        self.phase = Phase.COMMITTING
        files = [file for file, _ in self._fresh]
        removed: tuple[str, ...] = ()
        if self._merged is not None:
            files.append(self._merged.file)
            removed = self._merged.removed
        return [
            Commit(
                self.contents,
                tuple(files),
                removed,
                self._time_marks(self.contents),
                self._nodes,
                {file.partition_id: replicas for file, replicas in self._fresh},
            )
        ]

    def _time_marks(self, contents: Contents) -> dict[PartitionId, tuple[TimeMark, ...]]:
        """Return the time up to which the new objects have all; of a partition without transactions
        the time at which it was empty, so that a restore can tell it from one that was left out."""
        found: dict[PartitionId, tuple[TimeMark, ...]] = {
            each: (TimeMark(NOTHING, self._told_at),)
            for each, mark in self.marks.items()
            if mark == NOTHING and self._is_chosen(each) and each not in contents.time_marks
        }
        for file, _ in self._fresh:
            found[file.partition_id] = (TimeMark(TransactionId(file.end - 1), self._told_at),)
        return found

    def _go_on_from(self, contents: Contents, wall_milliseconds: int, now: float) -> list[Effect]:
        self.contents = contents
        self.commits += 1
        self.trouble = None
        self._pause = RETRY_SECONDS_MIN
        if not self.troubles and not self._is_behind(contents):
            self.committed_at = wall_milliseconds
        self._nodes = None
        self._drop_fresh()
        if self._stopping:
            return self._close()
        for files in contents.files.values():
            if (run := joined(files, self._object_bytes)) is not None:
                self.phase = Phase.MERGING
                return [Merge(run)]
        return self._end_round(now)

    def _drop_fresh(self) -> None:
        """Forget what was copied: it is committed, or lost the race and will be swept."""
        self._fresh, self._fresh_since, self._merged = [], None, None

    def _end_round(self, now: float, *, pause: bool = False) -> list[Effect]:
        assert self.contents is not None
        if now >= self._sweep_due:
            self._sweep_due = now + SWEEP_SECONDS
            self.phase = Phase.SWEEPING
            return [Sweep(self.contents)]
        behind = self._is_behind(self.contents)
        if behind and not pause:
            return self._ask(now)
        if self._once and not behind:
            return self._close()
        self._wait(now, self._every)
        return []

    def _is_behind(self, contents: Contents) -> bool:
        """Whether a partition that is in no trouble has more than is archived."""
        return any(
            each not in self.troubles and contents.end(each) <= mark
            for each, mark in self.marks.items()
        )

    def _fail(self, reason: str, now: float) -> list[Effect]:
        self.trouble = reason
        self.failures += 1
        was_committing = self.phase is Phase.COMMITTING
        self._drop_fresh()
        if self._stopping or self._once:
            return self._close()
        if was_committing:
            # The manifest may be there: what is archived is read again before anything is added.
            self.contents = None
        self._wait(now, self._pause)
        self._pause = min(2 * self._pause, RETRY_SECONDS_MAX)
        return []

    def _wait(self, now: float, seconds: float) -> None:
        self.phase = Phase.WAITING
        self.deadline = now + seconds

    def _close(self) -> list[Effect]:
        if self._once and self._stopping and self.trouble is None:
            self.trouble = "it was told to stop before all was known to be archived"
        self.phase = Phase.CLOSED
        self.deadline = None
        return []


def joined(files: Sequence[ArchivedFile], object_bytes: int) -> tuple[ArchivedFile, ...] | None:
    """Return the last objects of a partition if they are to become one; None: they are not."""
    last = tuple(files[-MERGED_FILES:])
    if (
        len(last) == MERGED_FILES
        and len({each.level for each in last}) == 1
        and sum(each.raw_count for each in last) <= object_bytes
    ):
        return last
    return None
