"""An archive in a directory: opening and reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archives import KEY, NOW, add, batch, directory_target
from waltz.archive.archive import Archive, open_archive
from waltz.archive.archive_target import Target
from waltz.archive.commits import commit, write_object
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import Manifest
from waltz.errors import ArchiveDamagedError, ConfigurationError, NotFoundError
from waltz.types import PartitionId, TransactionId


def test_an_archive_hands_out_exactly_the_records_asked_for(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    add(target, {0: [(0, 7), (7, 40)], 3: [(0, 5)]})
    add(target, {0: [(40, 55)]}, now=NOW + 1)
    archive = open_archive(f"file://{tmp_path}/a")
    assert archive.cluster_key == KEY
    assert {each: found.end for each, found in archive.partitions.items()} == {0: 55, 3: 5}
    assert archive.end(9) == 0
    for first in range(0, 55, 3):
        for end in range(first, 56, 5):
            found = b"".join(archive.blocks(0, first, end))
            assert found == batch(first, end - first).block
    assert b"".join(archive.blocks(3, 1, 5)) == batch(1, 4, partition=3).block
    assert [tuple(each) for each in archive.time_marks(0)] == [(39, NOW), (54, NOW + 1)]
    assert archive.coordinator_nodes == {"/store": b"made for tests"}
    with pytest.raises(NotFoundError, match="0 to 54"):
        list(archive.blocks(0, 50, 56))


def test_a_place_without_an_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="waltz archive run"):
        open_archive(f"file://{tmp_path}")
    with pytest.raises(ConfigurationError, match="is it mounted"):
        open_archive(f"file://{tmp_path}/nowhere")


def join_all(target: Target, archive: Archive) -> None:
    """Replace the objects of partition 0 by one, and sweep them, as archivers do after a day."""
    files = archive.partitions[PartitionId(0)].files
    writer = ObjectWriter(KEY, PartitionId(0), TransactionId(0))
    writer.add(batch(0, files[-1].end))
    whole = write_object(target, writer.finish(), "f" * 16, level=1)
    removed = dict.fromkeys((each.path for each in files), NOW)
    commit(target, archive.contents, Manifest(0, None, NOW, "w", files=(whole,), removed=removed))
    for path in removed:
        target.delete(path)


def test_a_reading_of_days_goes_on_in_objects_that_replaced_those_it_knew(
    tmp_path: Path,
) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 7), (7, 40)]})
    other = open_archive(archive.url)
    under_way = archive.blocks(0, 0, 40)
    found = [next(under_way)]
    join_all(target, archive)
    found += under_way
    assert b"".join(found) == batch(0, 40).block
    assert b"".join(other.blocks(0, 3, 39)) == batch(3, 36).block
    assert other.contents == archive.contents, "the archive is as it was opened"


def test_a_lost_object_is_told_with_its_transactions(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 7), (7, 40)]})
    target.delete(archive.partitions[PartitionId(0)].files[1].path)
    found: list[bytes] = []
    with pytest.raises(ArchiveDamagedError, match="is lost") as caught:
        found += archive.blocks(0, 3, 20)
    assert (caught.value.partition_id, caught.value.first, caught.value.end) == (0, 7, 40)
    assert b"".join(found) == batch(3, 4).block
