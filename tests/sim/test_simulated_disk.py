"""The simulated disk owes what a real one owes, and forgets the rest."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from waltz.errors import DirectoryInUseError
from waltz.host import Space
from waltz.sim.simulated_disk import SECTOR_BYTES, DiskOperation, SimulatedDisk, fail_nth

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
    assert disk.files.unsynced_count == 1


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


def test_a_second_name_is_durable_once_its_own_directory_is_synced() -> None:
    disk = SimulatedDisk(["/a", "/b"], capacity_bytes=100)
    disk.open("/a/x", create=True).write_at(0, bytes(60))
    disk.sync_directory("/a")
    disk.link("/a/x", "/b/y")
    with pytest.raises(FileExistsError):
        disk.link("/a/x", "/b/y")
    assert (disk.content("/b/y"), disk.free_bytes) == (bytes(60), 40)
    assert {disk.crash_clone(Random(seed)).exists("/b/y") for seed in range(20)} == {False, True}
    for seed in range(20):
        clone = disk.crash_clone(Random(seed))
        if clone.exists("/b/y"):
            assert clone.content("/a/x") == clone.content("/b/y")
    disk.sync_directory("/b")
    disk.rename("/a/x", "/b/z")
    found = {tuple(disk.crash_clone(Random(seed)).contents()) for seed in range(40)}
    assert found == {
        ("/", "/a", "/a/x", "/b", "/b/y"),
        ("/", "/a", "/b", "/b/y"),
        ("/", "/a", "/a/x", "/b", "/b/y", "/b/z"),
        ("/", "/a", "/b", "/b/y", "/b/z"),
    }


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
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    with pytest.raises(OSError, match="sync number 1"):
        file.sync()
    file.sync()
    assert file.read_at(0, 3) == b"new"
    assert all(disk.crash_clone(Random(seed)).content(PATH) == b"old" for seed in range(20))


def test_failed_write_may_have_written_a_part() -> None:
    disk = make_disk()
    disk.fault = fail_nth(DiskOperation.WRITE, 2, errno.ENOSPC)
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
    assert disk.counts == {DiskOperation.OPEN: 1, DiskOperation.WRITE: 2, DiskOperation.SYNC: 1}


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
    file.close()
    to_read = disk.open_to_read(PATH)
    changes: tuple[Callable[[], None], ...] = (
        lambda: to_read.write_at(0, b"x"),
        lambda: to_read.truncate(0),
        lambda: to_read.preallocate(10),
        to_read.sync,
    )
    for change in changes:
        with pytest.raises(OSError, match="for reading only") as caught:
            change()
        assert caught.value.errno == errno.EBADF
    with pytest.raises(FileNotFoundError):
        disk.open_to_read("/directory/absent")
    with pytest.raises(FileNotFoundError):
        disk.space("/absent")


def test_file_opened_to_read_is_read() -> None:
    disk = make_disk(b"abc")
    file = disk.open_to_read(PATH)
    assert (file.size(), file.read_at(1, 9)) == (3, b"bc")
    disk.fault = fail_nth(DiskOperation.READ, 1)
    with pytest.raises(OSError, match="read number 1"):
        file.read_at(0, 3)
    assert file.read_at(0, 3) == b"abc"


def test_full_disk_takes_what_fits_and_refuses_the_rest() -> None:
    disk = make_disk(b"x" * 1000)
    assert disk.space("/").free_bytes > 1 << 40
    disk.capacity_bytes = 1500
    assert disk.space(PATH) == disk.space("/") == Space(500, 1500)
    file = disk.open(PATH)
    with pytest.raises(OSError, match="no space") as caught:
        file.write_at(900, b"y" * 700)
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 2000) == b"x" * 900 + b"y" * 600
    with pytest.raises(OSError, match="no space"):
        file.write_at(1600, b"z")
    assert (file.size(), disk.free_bytes) == (1500, 0)
    file.write_at(0, b"z" * 1500)
    disk.capacity_bytes = 1600
    file.write_at(1550, b"z")
    assert (file.size(), disk.free_bytes) == (1551, 49)
    file.truncate(100)
    assert disk.free_bytes == 1500
    disk.capacity_bytes = 50
    assert disk.free_bytes == 0


def test_writes_inside_preallocated_space_never_lack_space() -> None:
    disk = make_disk(b"x" * 100)
    disk.capacity_bytes = 1000
    file = disk.open(PATH)
    file.preallocate(50)
    assert disk.free_bytes == 900
    file.preallocate(600)
    file.preallocate(300)
    assert (disk.free_bytes, file.size()) == (400, 100)
    other = disk.open("/directory/other", create=True)
    with pytest.raises(OSError, match="no space"):
        other.write_at(0, bytes(401))
    assert disk.free_bytes == 0
    file.write_at(100, b"y" * 500)
    with pytest.raises(OSError, match="no space"):
        file.write_at(600, b"y")
    clone = disk.crash_clone(Random(0))
    assert (clone.capacity_bytes, clone.content(PATH)[:100]) == (1000, b"x" * 100)
    file.truncate(100)
    assert disk.free_bytes == 500
    with pytest.raises(OSError, match="no space"):
        file.preallocate(601)
    assert disk.free_bytes == 0
    file.truncate(100)
    assert disk.free_bytes == 500
    disk.remove("/directory/other")
    assert disk.free_bytes == 900


def test_removed_file_that_is_still_open_is_written_and_read() -> None:
    disk = make_disk(b"abc")
    disk.capacity_bytes = 10
    file = disk.open(PATH)
    disk.remove(PATH)
    file.write_at(3, b"def")
    assert file.read_at(0, 10) == b"abcdef"


def test_faults_say_how_much_of_the_operation_was_done_and_may_last() -> None:
    disk = make_disk()
    file = disk.open(PATH)
    for done, found in ((0.0, b""), (0.75, b"abc"), (1.0, b"abcd")):
        file.truncate(0)
        disk.fault = fail_nth(DiskOperation.WRITE, 1, errno.ENOSPC, done=done)
        with pytest.raises(OSError, match="write number 1") as caught:
            file.write_at(0, b"abcd")
        assert caught.value.errno == errno.ENOSPC
        assert disk.content(PATH) == found
    disk.fault = None
    file.truncate(0)
    file.sync()
    file.write_at(0, b"ab")
    file.write_at(2, b"cd")
    disk.fault = fail_nth(DiskOperation.SYNC, 1, done=0.5)
    with pytest.raises(OSError, match="sync number 1"):
        file.sync()
    assert disk.crash_clone(Random(0)).content(PATH) == b"ab"
    disk.fault = fail_nth(DiskOperation.PREALLOCATE, 2, forever=True)
    file.preallocate(10)
    for number in (2, 3):
        with pytest.raises(OSError, match=f"preallocate number {number}"):
            file.preallocate(10)
