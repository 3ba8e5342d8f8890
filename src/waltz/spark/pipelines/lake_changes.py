"""The changes of a table in an open format, read from the versions that it keeps anyway.

Each commit of a pipeline says how far the log was taken in, so a position leads to a version. The
versions of other programs in between, such as those of a compaction, are no places of their own:
what they have changed comes with the next commit of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from waltz.spark.pipelines.bucket_changes import BucketFiles, FilePaths
from waltz.spark.pipelines.row_changes import (
    CommittedChanges,
    Marks,
    Position,
    expect_same_table,
    identity,
    missing,
    not_a_place,
    reaches,
)


class TableVersions(Protocol):
    """The versions of one table, from 0, the oldest, to `newest`."""

    @property
    def table_id(self) -> UUID: ...

    @property
    def newest(self) -> int: ...

    def marks(self, number: int) -> Marks | None:
        """Return how far the log was taken in; None: the version is not kept any more."""
        ...

    def files(self, number: int) -> FilePaths:
        """Return the files of a version that is kept, by their buckets."""
        ...


def changes_between_versions(
    versions: TableVersions, rows: BucketFiles, history: UUID | None, after: Position | None
) -> Iterator[CommittedChanges]:
    """Yield what each commit after a position has changed, in order; None: the whole table, as one
    commit of inserts. `history` is that of the newest version. Raises ChangesMissingError;
    otherwise as `BucketFiles.changes`."""
    table_id = identity(versions.table_id, history)
    now = versions.marks(versions.newest)
    if now is None:
        raise missing(f"{rows.place} has no newest version: it was replaced while it was read")
    last = _first_that_reaches(versions, now)
    if after is None:
        changes = rows.changes({}, versions.files(last))
        yield CommittedChanges(Position(table_id, now), changes)
        return
    expect_same_table(rows.place, after, table_id)
    if not reaches(now, after.marks):
        raise not_a_place(rows.place, after.marks, now, is_tidied=False)
    start = _first_that_reaches(versions, after.marks)
    if versions.marks(start) != after.marks:
        is_tidied = start > 0 and versions.marks(start - 1) is None
        raise not_a_place(rows.place, after.marks, now, is_tidied=is_tidied)
    marks, files = after.marks, versions.files(start)
    for number in range(start + 1, last + 1):
        found = versions.marks(number)
        if found is None:
            raise not_a_place(rows.place, after.marks, now, is_tidied=True)
        if found == marks:
            continue
        before, files, marks = files, versions.files(number), found
        yield CommittedChanges(Position(table_id, marks), rows.changes(before, files))


def _first_that_reaches(versions: TableVersions, wanted: Marks) -> int:
    """Return the oldest kept version that has all of `wanted`, which the newest has: later versions
    never have less."""
    low, high = 0, versions.newest
    while low < high:
        middle = (low + high) // 2
        marks = versions.marks(middle)
        if marks is not None and reaches(marks, wanted):
            high = middle
        else:
            low = middle + 1
    return low
