"""Lost and damaged objects are written anew, from a log that has the same records."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.archive.archives import NOW, OTHER_KEY, add, directory_target
from tests.archive.listed_log import ListedLog
from tests.archive.test_archive import join_all
from tests.archive.test_archive_verification import handed_out, object_of, small_archive
from waltz.archive.archive import read_archive
from waltz.archive.archive_repair import RepairReport, repair
from waltz.archive.archive_target import Target
from waltz.archive.archive_verification import verify
from waltz.archive.manifest import manifest_path
from waltz.errors import ArchiveDamagedError, ConfigurationError


def repaired(target: Target, log: ListedLog) -> RepairReport:
    numbers = itertools.count()
    return repair(target, log, unique=lambda: f"{next(numbers):016x}", now=NOW + 9)


def test_what_is_right_is_left_alone() -> None:
    target = small_archive()
    before = read_archive(target).contents
    report = repaired(target, ListedLog({0: 8, 1: 5}, size=4))
    assert (report.objects, report.repaired, report.refused) == (3, [], {})
    assert read_archive(target).contents == before


def test_lost_and_damaged_objects_are_written_anew() -> None:
    target = small_archive()
    good = handed_out(target)
    lost, harmed = object_of(target, 0), object_of(target, 2)
    target.delete(lost.path)
    target.put(harmed.path, b"x" * 100)
    report = repaired(target, ListedLog({0: 8, 1: 5}, size=4))
    assert [(each.partition_id, each.first, each.end) for each in report.repaired] == [
        (0, 0, 6),
        (1, 0, 6),
    ]
    assert handed_out(target) == good
    assert verify(target).verdict is True
    assert read_archive(target).contents.removed == {lost.path: NOW + 9, harmed.path: NOW + 9}


def test_an_archiver_that_commits_meanwhile_does_not_stop_a_repair() -> None:
    """To look at all objects takes hours, and an archiver commits every few seconds."""
    target = small_archive()
    lost, harmed = object_of(target, 0), object_of(target, 2)
    target.delete(lost.path)
    target.put(harmed.path, b"x" * 100)
    numbers = itertools.count()

    def unique() -> str:
        number = next(numbers)
        add(target, {1: [(6 + number, 7 + number)]}, now=NOW + 2 + number, size=4)
        return f"{number:016x}"

    report = repair(target, ListedLog({0: 8, 1: 5}, size=4), unique=unique, now=NOW + 99)
    assert (len(report.repaired), report.refused) == (2, {})
    found = verify(target)
    assert (found.verdict, found.findings) == (True, [])
    assert read_archive(target).end(1) > 6, "and what was archived meanwhile stays"


def test_an_object_that_was_replaced_meanwhile_is_not_written_anew(tmp_path: Path) -> None:
    target = directory_target(tmp_path)
    archive = add(target, {0: [(0, 6), (6, 9)]})
    report = repair(
        target,
        ListedLog({0: 8}),
        unique=lambda: "a" * 16,
        now=NOW + 9,
        announce=lambda total: join_all(target, archive),
    )
    assert (report.repaired, report.refused) == ([], {})
    assert verify(target).verdict is True


def test_nothing_is_replaced_by_other_records() -> None:
    target = small_archive()
    lost = object_of(target, 0)
    target.delete(lost.path)
    before = read_archive(target).contents
    log = ListedLog({0: 8, 1: 5}, size=4)
    log.differing = {"log": {3}}
    report = repaired(target, log)
    assert report.repaired == []
    assert "not those that were archived" in report.refused[lost.path]
    assert read_archive(target).contents == before
    log = ListedLog({0: 2, 1: 5}, size=4)
    assert "the log ends" in repaired(target, log).refused[lost.path]


def test_another_clusters_log_mends_nothing() -> None:
    with pytest.raises(ConfigurationError, match="nothing was changed"):
        repaired(small_archive(), ListedLog({0: 8, 1: 5}, key=OTHER_KEY, size=4))


def test_a_damaged_manifest_is_no_matter_of_the_log() -> None:
    target = small_archive()
    document = json.loads(target.get(manifest_path(1), 1 << 20))
    document["previous"] = "0" * 64
    target.put(manifest_path(1), json.dumps(document).encode())
    with pytest.raises(ArchiveDamagedError, match="is not the one"):
        repaired(target, ListedLog({0: 8, 1: 5}, size=4))
