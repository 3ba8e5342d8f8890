"""The archive's manifests: one history, joined up, whoever writes and whenever one dies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from waltz.cluster.histories import Histories
from waltz.cluster.log_history import LogHistory
from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    VersionConflictError,
)
from waltz.spark.block_digests import Block
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import (
    ORPHAN_SECONDS_MIN,
    Archive,
    ArchivedFile,
    Contents,
    followed,
)
from waltz.types import PartitionId, TransactionId

KEY = UUID(int=1)
EMPTY = Contents(0, ())


def span(partition_id: int, first: int, end: int) -> TransactionRange:
    return TransactionRange(PartitionId(partition_id), TransactionId(first), TransactionId(end))


def archived(partition_id: int, first: int, end: int) -> ArchivedFile:
    run = span(partition_id, first, end)
    return ArchivedFile(f"partition={partition_id}/{first}-{end}", run, 9, (Block(run, "ab"),))


def test_an_archive_is_made_once_and_found_again(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    made = Archive.create(directory, KEY)
    assert made.contents() == EMPTY
    assert Archive.create(directory, KEY).contents() == EMPTY
    assert Archive.open(directory).cluster_key == KEY


def test_two_runs_may_make_an_archive_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def beaten(draft: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        Archive.create(tmp_path / "archive", KEY)
        link(draft, path)

    monkeypatch.setattr(os, "link", beaten)
    # The other one writes its head while this one is about to.
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(()))
    assert Archive.create(tmp_path / "archive", KEY).contents() == EMPTY


def test_commits_add_up_in_order(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, KEY)
    first = archive.commit(EMPTY, [archived(1, 0, 5), archived(0, 3, 4), archived(0, 0, 3)])
    second = archive.commit(first, [archived(0, 4, 9)])
    assert archive.contents() == second
    assert second.commits == 2
    assert [each.range for each in second.files] == [
        span(0, 0, 3),
        span(0, 3, 4),
        span(0, 4, 9),
        span(1, 0, 5),
    ]
    assert second.next_ids() == {0: 9, 1: 5}


def test_opening_takes_as_long_as_there_are_files_however_many_commits_they_came_in(
    tmp_path: Path,
) -> None:
    """F-22: counted in calls of functions, ours and built-in ones."""

    def calls_to_open(commits: int) -> int:
        archive = Archive.create(tmp_path / str(commits), KEY)
        for number in range(commits):
            entry = {"files": [archived(0, number, number + 1).encode()]}
            path = archive.directory / "manifests" / f"{number:020d}.json"
            path.write_text(json.dumps(entry))
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(counted)
        try:
            contents = archive.contents()
        finally:
            sys.setprofile(None)
        assert contents.next_ids() == {0: commits}
        return count

    few, many = calls_to_open(50), calls_to_open(400)
    assert many < 8.5 * few


def test_of_two_writers_one_commits(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, KEY)
    archive.commit(EMPTY, [archived(0, 0, 5)])
    with pytest.raises(VersionConflictError, match=r"^WALTZ-2007 another run has added"):
        archive.commit(EMPTY, [archived(0, 0, 7)])
    assert archive.contents().next_ids() == {0: 5}
    assert not list(tmp_path.glob("manifests/.*"))


def test_a_commit_while_the_manifests_are_read_is_no_damage(tmp_path: Path) -> None:
    Archive.create(tmp_path, KEY)
    added = iter([archived(0, 0, 4)])

    class Busy(type(tmp_path)):  # type: ignore[misc]
        """The directory, to which another run adds before its names are listed."""

        def glob(self, *given: Any, **named: Any) -> Iterator[Path]:
            for file in added:
                Archive.open(tmp_path).commit(EMPTY, [file])
            yield from super().glob(*given, **named)

    found = Archive.open(Busy(tmp_path)).contents()
    assert (found.commits, found.next_ids()) == (1, {0: 4})


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ([archived(0, 6, 9)], "continues at 5"),
        ([archived(0, 4, 9)], "continues at 5"),
        ([archived(0, 5, 5)], "continues at 5"),
        ([archived(1, 1, 9)], "continues at 0"),
        ([ArchivedFile("p", span(0, 5, 9), 1, (Block(span(0, 5, 8), ""),))], "its blocks are not"),
        ([ArchivedFile("p", span(0, 5, 9), 1, ())], "its blocks are not"),
    ],
)
def test_what_does_not_join_up_is_refused(added: list[ArchivedFile], fault: str) -> None:
    with pytest.raises(CorruptionError, match=f"^WALTZ-2006 .*{fault}"):
        followed(Contents(1, (archived(0, 0, 5),)), added)


def test_a_range_is_found_in_the_files_that_have_it() -> None:
    contents = Contents(1, (archived(0, 0, 5), archived(0, 5, 9), archived(1, 0, 9)))
    found = contents.within(span(0, 3, 20))
    assert [(file.range, part) for file, part in found] == [
        (span(0, 0, 5), span(0, 3, 5)),
        (span(0, 5, 9), span(0, 5, 9)),
    ]


def test_another_clusters_archive_is_refused(tmp_path: Path) -> None:
    Archive.create(tmp_path, KEY)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* has the log of cluster"):
        Archive.create(tmp_path, UUID(int=2))


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* has files but no archive"):
        Archive.create(tmp_path, KEY)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* holds no archive: No such file"):
        Archive.open(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, KEY)
    first = archive.commit(EMPTY, [archived(0, 0, 5)])
    archive.commit(first, [archived(0, 5, 6)])
    manifest = tmp_path / "manifests" / f"{0:020d}.json"
    manifest.write_text('{"files": [{}]}')
    with pytest.raises(CorruptionError, match=r"^WALTZ-2006 .*0\.json is damaged"):
        archive.contents()
    manifest.unlink()
    with pytest.raises(CorruptionError, match=r"^WALTZ-2006 .*0\.json is missing; later manifests"):
        archive.contents()
    head = tmp_path / "archive.json"
    head.write_text(json.dumps({"format": 2, "cluster": str(KEY)}))
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* has format 2; .* reads 1"):
        Archive.open(tmp_path)
    head.write_text("{")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* is damaged"):
        Archive.open(tmp_path)


def test_what_a_killed_writer_left_is_swept_once_it_is_old(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, KEY)
    folder = tmp_path / "partition=0"
    folder.mkdir()
    for name in ("0-5", "5-9.parquet", "9-12.parquet.tmp"):
        (folder / name).write_bytes(b"x")
    contents = archive.commit(EMPTY, [archived(0, 0, 5)])
    now = (folder / "5-9.parquet").stat().st_mtime
    assert archive.sweep(contents, now=now + ORPHAN_SECONDS_MIN - 60) == []
    assert archive.sweep(contents, now=now + ORPHAN_SECONDS_MIN + 60) == [
        "partition=0/5-9.parquet",
        "partition=0/9-12.parquet.tmp",
    ]
    assert (folder / "0-5").exists()


def test_an_archive_beyond_the_point_of_a_restore_is_not_the_logs(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, KEY)
    contents = archive.commit(EMPTY, [archived(0, 0, 9)])
    marks = {PartitionId(0): TransactionId(20)}
    second = UUID(int=2)

    def restored(first: int) -> Histories:
        return Histories(KEY, (LogHistory(second, 0, {PartitionId(0): TransactionId(first)}),))

    contents.expect_in_log(marks, Histories(KEY), tmp_path)
    contents.expect_in_log(marks, restored(9), tmp_path)
    with pytest.raises(HistoryChangedError) as raised:
        contents.expect_in_log(marks, restored(8), tmp_path)
    assert str(raised.value).startswith(
        f"WALTZ-2017 the archive {tmp_path} has applied partition 0"
    )
    assert "Transactions 8 to 8, as" in str(raised.value)
    assert str(raised.value).endswith("archive into another directory")
    followed_on = archive.commit(contents, [archived(0, 9, 12)], second)
    assert archive.contents() == followed_on
    followed_on.expect_in_log(marks, restored(9), tmp_path)
    first, then = [path.read_text() for path in sorted((tmp_path / "manifests").iterdir())]
    assert first == (
        '{"files": [{"path": "partition=0/0-9", "partition": 0, "first": 0, "end": 9, "bytes": 9,'
        ' "blocks": [[0, 9, "ab"]]}]}'
    )
    assert then == (
        '{"history": "00000000-0000-0000-0000-000000000002", "files": [{"path": "partition=0/9-12",'
        ' "partition": 0, "first": 9, "end": 12, "bytes": 9, "blocks": [[9, 12, "ab"]]}]}'
    )
