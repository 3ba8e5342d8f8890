"""Objects in a directory: many at once, each once, all whole. Power cuts: `tests/attest`."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from waltz.archive.durable_directory import DurableDirectory
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.system.real_disk import RealDisk


@pytest.mark.parametrize("writers", [1, 16])
def test_many_objects_are_made_and_those_that_were_there_stay(tmp_path: Path, writers: int) -> None:
    directory = DurableDirectory(RealDisk(), str(tmp_path), writers=writers)
    objects = [(f"tile/{number % 3}/{number:03}", b"%d" % number) for number in range(200)]
    assert directory.put_all_if_absent(objects[50:60]) == []
    others = [(path, b"other") for path, _ in objects[50:60]]
    assert directory.put_all_if_absent(objects[:50] + others) == [path for path, _ in others]
    assert directory.put_all_if_absent(objects[60:]) == []
    for path, data in objects:
        assert (tmp_path / path).read_bytes() == data
    directory.put("tile/0/000", b"replaced")
    assert (tmp_path / "tile/0/000").read_bytes() == b"replaced"
    assert not any((tmp_path / "staging").iterdir())


def test_a_directory_is_synced_once_for_all_that_is_put_into_it() -> None:
    disk = SimulatedDisk(["/a"])
    objects = [(f"x/y/{number}", b"data") for number in range(100)]
    DurableDirectory(disk, "/a").put_all_if_absent(objects)
    assert disk.counts[DiskOperation.SYNC] == 100
    assert disk.counts[DiskOperation.SYNC_DIRECTORY] == 3
    assert disk.files.durable_contents().keys() >= {f"/a/{path}" for path, _ in objects}


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
def test_no_object_has_its_name_if_one_could_not_be_synced(operation: DiskOperation) -> None:
    disk = SimulatedDisk(["/a"], fault=fail_nth(operation, 3))
    with pytest.raises(OSError, match="fails"):
        DurableDirectory(disk, "/a").put_all_if_absent([(f"x/{each}", b"d") for each in range(5)])
    assert not [path for path in disk.contents() if path.startswith("/a/x/")]


@pytest.mark.parametrize(
    "operation",
    [DiskOperation.OPEN, DiskOperation.WRITE, DiskOperation.SYNC, DiskOperation.LINK],
)
def test_a_write_that_fails_leaves_no_bytes_behind(operation: DiskOperation) -> None:
    """Else each attempt on a full disk would take what was freed since the one before."""
    disk = SimulatedDisk(["/a"])
    directory = DurableDirectory(disk, "/a")
    for _ in range(3):
        disk.fault = fail_nth(operation, 3, errno.ENOSPC)
        with pytest.raises(OSError, match="fails"):
            directory.put_all_if_absent([(f"x/{each}", b"data") for each in range(5)])
    assert disk.list_directory("/a/staging") == []


def test_an_object_that_cannot_be_replaced_leaves_no_bytes_behind() -> None:
    disk = SimulatedDisk(["/a"], fault=fail_nth(DiskOperation.RENAME, 1))
    with pytest.raises(OSError, match="fails"):
        DurableDirectory(disk, "/a").put("x", b"data")
    assert disk.list_directory("/a/staging") == []
