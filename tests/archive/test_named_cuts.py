"""Cuts in an archive: named once, and only when all of them is archived."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.archive.archives import KEY, NOW, add, directory_target
from waltz.archive.archive import open_archive, read_archive
from waltz.archive.archive_target import Target
from waltz.archive.commits import commit, create_archive
from waltz.archive.manifest import Cut, Manifest
from waltz.archive.named_cuts import check_name, record_cut, unarchived
from waltz.errors import ConfigurationError, NotFoundError
from waltz.types import PartitionId, TransactionId

P0, P1 = PartitionId(0), PartitionId(1)


def cut(name: str, *marks: int) -> Cut:
    return Cut(name, {PartitionId(n): TransactionId(mark) for n, mark in enumerate(marks)}, NOW)


def test_a_recorded_cut_is_there_when_the_archive_is_opened(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5)], 1: [(0, 3)]})
    after = record_cut(target, archive.contents, cut("friday", 4, 1), now=NOW + 1, writer="w")
    assert after.cuts == {"friday": cut("friday", 4, 1)}
    assert open_archive(target.url).cuts == after.cuts


def test_a_partition_without_transactions_lacks_none(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = create_archive(target, KEY)
    assert unarchived(archive.contents, {P0: TransactionId(-1)}) == {}
    after = record_cut(target, archive.contents, cut("empty", -1), now=NOW, writer="w")
    assert after.cuts["empty"].marks == {P0: -1}


def test_what_is_not_archived_yet_is_counted_and_not_named(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5)], 1: [(0, 3)]})
    wanted = cut("early", 4, 3, 9)
    assert unarchived(archive.contents, wanted.marks) == {P1: 1, PartitionId(2): 10}
    with pytest.raises(NotFoundError, match=r"lacks 11 transactions .* partitions 1, 2"):
        record_cut(target, archive.contents, wanted, now=NOW, writer="w")
    assert read_archive(target).cuts == {}


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", "x" * 101, "naïve", "a\n"])
def test_a_name_that_no_manifest_takes_is_refused_before(name: str, tmp_path: Path) -> None:
    contents = create_archive(directory_target(tmp_path / "a"), KEY).contents
    with pytest.raises(ConfigurationError, match="cannot be the name of a cut"):
        check_name(contents, name)


def test_a_cut_is_never_replaced(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5)]})
    contents = record_cut(target, archive.contents, cut("friday", 4), now=NOW, writer="w")
    # Also if the one who records has not heard of it.
    for known in (archive.contents, contents):
        with pytest.raises(ConfigurationError, match="has a cut 'friday' already"):
            record_cut(target, known, cut("friday", 2), now=NOW, writer="x")
    assert read_archive(target).cuts == {"friday": cut("friday", 4)}


def test_a_commit_of_the_archiver_in_between_is_no_obstacle(tmp_path: Path) -> None:
    """The race that is lost is run again, on what was committed meanwhile."""
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 5)]})
    rival = Rival(target)
    after = record_cut(rival.target, archive.contents, cut("friday", 4), now=NOW, writer="w")
    assert rival.commits == 3
    assert after.cuts.keys() == {"friday"}
    assert read_archive(target).contents == after
    assert read_archive(target).contents.number == archive.contents.number + 4


class Rival:
    """An archiver that commits just before another writer's manifest, three times."""

    def __init__(self, target: Target) -> None:
        self.commits = 0
        self.target: Any = _Overtaken(target, self)

    def commit(self, target: Target) -> None:
        if self.commits == 3:
            return
        self.commits += 1
        change = Manifest(0, None, NOW, f"rival-{self.commits}")
        commit(target, read_archive(target).contents, change)


class _Overtaken:
    """A place where the rival is always first."""

    def __init__(self, target: Target, rival: Rival) -> None:
        self._true = target
        self._rival = rival

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path.startswith("manifests/"):
            self._rival.commit(self._true)
        return self._true.put_if_absent(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._true, name)
