"""An archive in a directory: opening and reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archives import KEY, NOW, add, batch, directory_target
from waltz.archive.archive import open_archive
from waltz.errors import ArchiveDamagedError, ConfigurationError, NotFoundError
from waltz.types import PartitionId


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


def test_a_lost_object_is_told_with_its_transactions(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    archive = add(target, {0: [(0, 7), (7, 40)]})
    target.delete(archive.partitions[PartitionId(0)].files[1].path)
    found: list[bytes] = []
    with pytest.raises(ArchiveDamagedError, match="is lost") as caught:
        found += archive.blocks(0, 3, 20)
    assert (caught.value.partition_id, caught.value.first, caught.value.end) == (0, 7, 40)
    assert b"".join(found) == batch(3, 4).block
