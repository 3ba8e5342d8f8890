"""The simulated disk owes what a real one owes, and forgets the rest."""

from __future__ import annotations

import errno
from random import Random

import pytest

from waltz.errors import DirectoryInUseError
from waltz.sim.disk import SECTOR_BYTES, Operation, SimulatedDisk, fail_nth

PATH = "/directory/file"


def make_disk(content: bytes = b"") -> SimulatedDisk:
    disk = SimulatedDisk(["/directory"])
    file = disk.open(PATH, create=True)
    file.write_at(0, content)
    file.sync()
    disk.sync_directory("/directory")
    return disk


def test_what_was_written_is_read() -> None:
    disk = make_disk(b"abcdef")
    file = disk.open(PATH)
    file.write_at(4, memoryview(b"EFGH"))
    assert file.read_at(0, 100) == b"abcdEFGH"
    assert file.read_at(2, 3) == b"cdE"
    assert file.read_at(8, 1) == b""
    file.write_at(10, b"K")
    assert file.read_at(0, 100) == b"abcdEFGH\0\0K"
    file.truncate(3)
    assert (file.size(), file.read_at(0, 100)) == (3, b"abc")
    file.truncate(5)
    assert disk.content(PATH) == b"abc\0\0"


def test_synced_bytes_survive_every_crash() -> None:
    disk = make_disk(b"x" * 3000)
    disk.open(PATH).write_at(1000, b"y" * 5000)
    for seed in range(100):
        found = disk.crash_clone(Random(seed)).content(PATH)
        assert found[:1000] == b"x" * 1000
        assert set(found[1000:3000]) <= set(b"xy")
        assert set(found[3000:]) <= set(b"y\0")


def test_unsynced_writes_survive_in_any_subset_of_sectors() -> None:
    disk = make_disk(b"x" * 2 * SECTOR_BYTES)
    file = disk.open(PATH)
    file.write_at(SECTOR_BYTES - 2, b"yyyy")
    file.write_at(0, b"z")
    found = {disk.crash_clone(Random(seed)).content(PATH) for seed in range(200)}
    around = {content[SECTOR_BYTES - 2 : SECTOR_BYTES + 2] for content in found}
    assert around == {b"xxxx", b"yyyy", b"yyxx", b"xxyy"}
    assert {content[:1] for content in found} == {b"x", b"z"}


def test_unsynced_size_may_be_lost() -> None:
    disk = make_disk(b"x" * 10)
    disk.open(PATH).truncate(4)
    sizes = {len(disk.crash_clone(Random(seed)).content(PATH)) for seed in range(20)}
    assert sizes == {4, 10}


def test_crash_clone_is_another_disk() -> None:
    disk = make_disk(b"x")
    clone = disk.crash_clone(Random(0))
    clone.open(PATH).write_at(0, b"y")
    assert disk.content(PATH) == b"x"
    assert clone.crash_clone(Random(0)).exists(PATH)


def test_names_survive_a_crash_once_their_directory_is_synced() -> None:
    disk = make_disk()
    disk.open("/directory/new", create=True).sync()
    disk.rename(PATH, "/directory/renamed")
    seen = set()
    for seed in range(50):
        clone = disk.crash_clone(Random(seed))
        seen.add(tuple(clone.list_directory("/directory")))
    assert seen == {("file",), ("file", "new"), ("renamed",), ("new", "renamed")}
    disk.sync_directory("/directory")
    disk.remove("/directory/new")
    seen = {
        tuple(disk.crash_clone(Random(seed)).list_directory("/directory")) for seed in range(20)
    }
    assert seen == {("renamed",), ("new", "renamed")}


def test_files_in_a_directory_that_vanishes_vanish_too() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/a")
    disk.open("/a/b", create=True).sync()
    disk.sync_directory("/a")
    assert {disk.crash_clone(Random(seed)).exists("/a/b") for seed in range(20)} == {False, True}
    disk.sync_directory("/")
    assert all(disk.crash_clone(Random(seed)).exists("/a/b") for seed in range(20))


def test_after_a_failed_sync_the_writes_are_seen_but_never_durable() -> None:
    disk = make_disk(b"old")
    file = disk.open(PATH)
    file.write_at(0, b"new")
    disk.fault = fail_nth(Operation.SYNC, 1)
    with pytest.raises(OSError, match="sync number 1"):
        file.sync()
    file.sync()
    assert file.read_at(0, 3) == b"new"
    assert all(disk.crash_clone(Random(seed)).content(PATH) == b"old" for seed in range(20))


def test_failed_write_may_have_written_a_part() -> None:
    disk = make_disk()
    disk.fault = fail_nth(Operation.WRITE, 2, errno.ENOSPC)
    file = disk.open(PATH)
    file.write_at(0, b"abcd")
    with pytest.raises(OSError, match="write number 2") as caught:
        file.write_at(4, b"efgh")
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 10) == b"abcdef"
    file.write_at(4, b"efgh")


def test_operations_are_counted() -> None:
    disk = make_disk()
    disk.counts.clear()
    file = disk.open(PATH)
    file.write_at(0, b"x")
    file.write_at(1, b"x")
    file.sync()
    assert disk.counts == {Operation.OPEN: 1, Operation.WRITE: 2, Operation.SYNC: 1}


def test_lock_is_exclusive_until_released_and_goes_with_a_rename() -> None:
    disk = make_disk()
    release = disk.lock(PATH)
    disk.rename(PATH, "/directory/renamed")
    with pytest.raises(DirectoryInUseError, match="/directory"):
        disk.lock("/directory/renamed")
    release()
    disk.lock("/directory/renamed")
    disk.crash_clone(Random(3)).lock("/directory/renamed")
    disk.release_locks()
    disk.lock("/directory/renamed")


def test_damage_changes_what_is_seen_and_what_is_durable() -> None:
    disk = make_disk(b"abc")
    disk.damage(PATH, 1, b"X")
    assert disk.content(PATH) == disk.crash_clone(Random(0)).content(PATH) == b"aXc"


def test_misuse_raises_what_an_operating_system_raises() -> None:
    disk = make_disk()
    with pytest.raises(FileNotFoundError):
        disk.open("/directory/absent")
    with pytest.raises(FileNotFoundError):
        disk.open("/absent/file", create=True)
    with pytest.raises(FileNotFoundError):
        disk.remove("/directory/absent")
    with pytest.raises(FileNotFoundError):
        disk.list_directory("/absent")
    with pytest.raises(FileExistsError):
        disk.open(PATH, create=True)
    with pytest.raises(FileExistsError):
        disk.make_directory("/directory")
    with pytest.raises(IsADirectoryError):
        disk.open("/directory")
    with pytest.raises(NotADirectoryError):
        disk.sync_directory(PATH)
    file = disk.open(PATH)
    file.close()
    for call in (file.size, file.sync, lambda: file.read_at(0, 1), lambda: file.write_at(0, b"x")):
        with pytest.raises(OSError, match="closed"):
            call()
