"""The search for the versions of a table that belong to a position, by value."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from tests.spark.tables_by_value import LAYOUT
from waltz.errors import ChangesMissingError
from waltz.spark.pipelines.bucket_changes import BucketFiles, FilePaths
from waltz.spark.pipelines.lake_changes import changes_between_versions
from waltz.spark.pipelines.row_changes import Marks, Position
from waltz.types import PartitionId, TransactionId

ID = UUID(int=3)
ROWS = BucketFiles("/nowhere", "the table", LAYOUT.definition)


def marks(*found: int) -> Marks:
    return {PartitionId(each): TransactionId(mark) for each, mark in enumerate(found) if mark}


class Listed:
    """Versions with these marks; None: not kept."""

    table_id = ID

    def __init__(self, *found: Sequence[int] | None) -> None:
        self._marks = [None if each is None else marks(*each) for each in found]
        self.newest = len(found) - 1
        self.asked = 0

    def marks(self, number: int) -> Marks | None:
        self.asked += 1
        return self._marks[number]

    def files(self, number: int) -> FilePaths:
        assert self._marks[number] is not None
        return {}


def after(versions: Listed, *wanted: int) -> list[Marks]:
    """Return the marks of the commits after a position."""
    commits = changes_between_versions(versions, ROWS, None, Position(ID, marks(*wanted)))
    return [each.position.marks for each in commits]


def test_each_commit_of_a_pipeline_is_one_and_versions_of_others_are_none() -> None:
    versions = Listed((), (4,), (4, 2), (4, 2), (9, 2), (9, 2))
    assert after(versions) == [marks(4), marks(4, 2), marks(9, 2)]
    assert after(versions, 4, 2) == [marks(9, 2)]
    assert after(versions, 9, 2) == []


def test_a_position_between_two_commits_or_beyond_all_is_told_from_one_that_was_let_go() -> None:
    versions = Listed(None, None, (4, 2), (9, 2))
    for wanted, text in (
        ((4, 1), "tidied away"),
        ((), "tidied away"),
        ((5, 2), "no commit that ended"),
        ((9, 3), "put back"),
        ((9, 2, 1), "put back"),
    ):
        with pytest.raises(ChangesMissingError, match=text):
            after(versions, *wanted)
    assert after(versions, 4, 2) == [marks(9, 2)]


def test_a_gap_among_the_versions_is_not_jumped_over() -> None:
    with pytest.raises(ChangesMissingError, match="tidied away"):
        after(Listed((), (1,), None, (3,), (4,)), 1)


def test_a_position_is_found_without_asking_for_every_version() -> None:
    versions = Listed(*((each,) for each in range(5000)))
    assert after(versions, 4998) == [marks(4999)]
    assert versions.asked < 50
