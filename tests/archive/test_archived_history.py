"""Whether the log of now continues an archive: by value."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.archive.archives import KEY, directory_target
from tests.archive.listed_log import ListedLog
from tests.archive.test_archiver_shell import run
from waltz.archive.archive import read_archive
from waltz.archive.archived_history import archived_history, expect_archived
from waltz.archive.manifest import Contents
from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import HistoryChangedError
from waltz.types import PartitionId, TransactionId


def restored(*firsts: int) -> Histories:
    return Histories(
        KEY,
        tuple(
            LogHistory(UUID(int=number), 0, {PartitionId(0): TransactionId(first)})
            for number, first in enumerate(firsts, 1)
        ),
    )


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    """Ten transactions of one partition, of the first history."""
    target = directory_target(tmp_path / "a")
    assert run(ListedLog({0: 9, 1: -1}), target).is_healthy
    return read_archive(target).contents


def test_an_archive_is_of_the_history_that_its_copy_of_the_node_names_last(
    contents: Contents,
) -> None:
    assert archived_history(contents, KEY) == KEY


def test_the_log_continues_an_archive_that_ends_at_the_point_or_before(contents: Contents) -> None:
    expect_archived(contents, Histories(KEY))
    expect_archived(contents, restored(10))
    expect_archived(contents, restored(10, 12))
    for firsts in ((9,), (10, 9), (0,)):
        with pytest.raises(HistoryChangedError, match=f"Transactions {min(firsts)} to 9, as"):
            expect_archived(contents, restored(*firsts))
