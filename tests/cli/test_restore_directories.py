"""Filling directories of this machine: room, and what is left when it fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.restore.memory_archive import RESTORE_ID, STORAGES, make_archive
from tests.restore.stored_archive import store
from tests.restore.test_restore_plan import plan
from tests.storage.independent_reader import parse_directory, read_files
from waltz.archive.archive import Archive, open_archive
from waltz.archive.archive_target import open_target
from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.restore_directories import directory_wish, fill_here
from waltz.cli.restore_partition import Found
from waltz.cli.restore_partition import fill_here as fill_partition_here
from waltz.cli.restore_points import restored_bytes
from waltz.cluster.partition_metadata import NEW_PARTITION
from waltz.cluster.store_params import StoreParams
from waltz.errors import ArchiveDamagedError, ConfigurationError, StorageError
from waltz.restore.partition_restore import PartitionRestore
from waltz.storage.directory.restored_files import MARK_FILE_NAME
from waltz.types import (
    Generation,
    PartitionId,
    ReplicaId,
    SessionId,
    TlsSettings,
    TransactionId,
    parse_coordinator,
)


def test_the_wish_of_a_directory_is_that_of_its_node_in_the_plan() -> None:
    found = plan(make_archive([10, 3]))
    wish = directory_wish(found, STORAGES[1])
    assert wish.partitions == {0: (9, 1_000_012), 1: (2, 1_000_012)}
    assert wish.cluster_key == found.cluster_key
    with pytest.raises(ConfigurationError, match="no storage node x:1"):
        directory_wish(found, ReplicaId("x:1"))


def directories(tmp_path: Path) -> dict[ReplicaId, Path]:
    found = {each: tmp_path / f"s{number}" for number, each in enumerate(STORAGES)}
    for path in found.values():
        path.mkdir()
    return found


def test_several_directories_are_filled_in_threads(tmp_path: Path) -> None:
    memory = make_archive([3000, 7])
    archive = open_archive(store(memory, tmp_path / "archive"))
    places = directories(tmp_path)
    reports = fill_here(archive, plan(memory), places, lambda p: 100, start_over=False)
    assert [each.replica_id for each in reports] == list(STORAGES)
    for path in places.values():
        found = parse_directory(read_files(path))
        assert b"".join(each.to_bytes() for each in found.records(0)) == memory.log(0, 2999)
    assert fill_here(archive, plan(memory), {}, lambda p: 100, start_over=False) == []


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    memory = make_archive([30])
    archive = open_archive(store(memory, tmp_path / "archive"))
    places = directories(tmp_path)
    with pytest.raises(ConfigurationError, match=r"writes about .* and their disk has .* left"):
        fill_here(archive, plan(memory), places, lambda p: 2**60, start_over=False)
    assert not any(any(path.iterdir()) for path in places.values())


def test_room_is_asked_for_what_is_restored_and_not_for_what_lies_beyond_the_point(
    tmp_path: Path,
) -> None:
    opened = open_archive(store(make_archive([700]), tmp_path / "archive"))
    one, two, three = opened.partitions[PartitionId(0)].files
    huge = {PartitionId(0): (one, two, replace(three, raw_count=2**60))}
    archive = Archive(open_target(opened.url), replace(opened.contents, files=huge))
    assert restored_bytes(archive, PartitionId(0), TransactionId(449)) < two.raw_count + 2**20
    found = Found(StoreParams(archive.cluster_key, 1), NEW_PARTITION, STORAGES, {}, {})
    wanted = PartitionRestore(
        RESTORE_ID, archive.url, "--marks 0=449", PartitionId(0), TransactionId(449),
        SessionId(1_000_012), Generation(1_004), STORAGES, False, 1000,
    )  # fmt: skip
    place = ClusterPlace(parse_coordinator("127.0.0.1:1"), TlsSettings())
    with pytest.raises(ConfigurationError, match=r"has no waltz-storage\.ctl"):
        fill_partition_here(archive, place, wanted, found, STORAGES[0], tmp_path)


def test_a_flipped_byte_in_any_object_is_never_restored(tmp_path: Path) -> None:
    memory = make_archive([40])
    url = store(memory, tmp_path / "archive")
    (path,) = (tmp_path / "archive").rglob("*.wal")
    good = path.read_bytes()
    places = directories(tmp_path)
    one = {STORAGES[0]: places[STORAGES[0]]}
    refused = 0
    for position in range(len(good)):
        wrong = bytearray(good)
        wrong[position] ^= 0x20
        path.write_bytes(bytes(wrong))
        try:
            given = b"".join(open_archive(url).blocks(0, 0, 40))
        except ArchiveDamagedError:
            refused += 1
            if position % 500 == 0:
                with pytest.raises(ArchiveDamagedError):
                    fill_here(open_archive(url), plan(memory), one, lambda p: 100, start_over=True)
                assert (places[STORAGES[0]] / MARK_FILE_NAME).exists()
        else:
            assert given == memory.log(0, 39)
    assert refused >= len(good) * 9 // 10, "most bytes are covered by what is read"


def test_an_error_of_a_disk_is_told_with_the_remedy(tmp_path: Path) -> None:
    memory = make_archive([10])
    archive = open_archive(store(memory, tmp_path / "archive"))
    file = tmp_path / "file"
    file.write_text("no directory")
    with pytest.raises(StorageError, match=r"Not a directory.*--start-over"):
        fill_here(archive, plan(memory), {STORAGES[0]: file}, lambda p: 1, start_over=False)
