"""Real files: positions, names, locks between processes, and what a failed sync leaves."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from waltz.errors import DirectoryInUseError
from waltz.system import real_disk as disk_module
from waltz.system.embedded_server import load_tree
from waltz.system.real_disk import RealDisk, owner_only, tell_of_open_files


def test_what_was_written_is_read(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "file")
    file = disk.open(path, create=True)
    file.write_at(0, b"abcdef")
    file.write_at(4, memoryview(b"EFGH"))
    file.sync()
    assert file.read_at(0, 100) == b"abcdEFGH"
    assert file.read_at(2, 3) == b"cdE"
    assert file.read_at(8, 10) == b""
    assert file.size() == 8
    file.truncate(3)
    assert file.read_at(0, 100) == b"abc"
    file.close()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_short_reads_and_writes_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating system may take or give less than asked for."""
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda f, count, at: pread(f, min(count, 3), at))
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: pwrite(f, data[:3], at))
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.write_at(2, b"0123456789")
    assert file.read_at(0, 100) == b"\0\x000123456789"
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: 0)
    with pytest.raises(OSError, match="nothing was written"):
        file.write_at(0, b"x")


def test_a_path_that_cannot_be_looked_at_is_not_taken_to_be_absent(tmp_path: Path) -> None:
    """A coordinator would begin with an empty tree, a replica would forget its promises."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    disk = RealDisk()
    assert disk.exists(str(tmp_path / "file"))
    assert disk.exists(str(tmp_path / "loop"))
    assert not disk.exists(str(tmp_path / "none"))
    assert not disk.exists(str(tmp_path / "file" / "none"))
    with pytest.raises(OSError, match="symbolic links"):
        disk.exists(str(tmp_path / "loop" / "file"))
    with pytest.raises(OSError, match="symbolic links"):
        load_tree(disk, str(tmp_path / "loop" / "tree"))


def test_create_and_open_insist_on_what_is_there(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    disk.open(path, create=True).close()
    with pytest.raises(FileExistsError):
        disk.open(path, create=True)
    disk.open(path).close()


def test_names(tmp_path: Path) -> None:
    disk = RealDisk()
    root = str(tmp_path)
    disk.make_directory(f"{root}/b")
    disk.open(f"{root}/c", create=True).close()
    disk.open(f"{root}/a", create=True).close()
    assert disk.list_directory(root) == ["a", "b", "c"]
    disk.rename(f"{root}/a", f"{root}/c")
    disk.remove(f"{root}/c")
    disk.sync_directory(root)
    assert disk.list_directory(root) == ["b"]
    assert disk.exists(f"{root}/b")
    assert not disk.exists(f"{root}/a")
    with pytest.raises(FileExistsError):
        disk.make_directory(f"{root}/b")
    disk.open(f"{root}/d", create=True).close()
    disk.link(f"{root}/d", f"{root}/e")
    assert disk.list_directory(root) == ["b", "d", "e"]
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/d", f"{root}/e")
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{root}/absent")


def test_lock_is_exclusive_in_one_process(tmp_path: Path) -> None:
    disk = RealDisk()
    path = str(tmp_path / "file")
    disk.open(path, create=True).close()
    release = disk.lock(path)
    disk.open(path).close()
    disk.rename(path, f"{path}2")
    with pytest.raises(DirectoryInUseError, match=str(tmp_path)):
        disk.lock(f"{path}2")
    release()
    disk.lock(f"{path}2")()


def test_lock_and_the_originals_record_lock_respect_each_other(tmp_path: Path) -> None:
    """SD-09: the original locks bytes 0 to 127 of its control file by `fcntl`."""
    path = tmp_path / "file"
    path.write_bytes(bytes(200))
    take = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b');"
        "fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 128, 0); print('locked', flush=True);"
        "sys.stdin.read()"
    )
    disk = RealDisk()
    release = disk.lock(str(path))
    refused = subprocess.run(
        [sys.executable, "-c", take, str(path)], input=b"", capture_output=True, check=False
    )
    assert b"BlockingIOError" in refused.stderr
    release()
    with subprocess.Popen(
        [sys.executable, "-c", take, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(DirectoryInUseError):
            disk.lock(str(path))
        other.stdin.close()
    disk.lock(str(path))()


def test_other_lock_errors_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(fcntl, "fcntl", fail)
    with pytest.raises(OSError, match="no locks available"):
        RealDisk().lock(str(path))


def test_failed_sync_is_raised_and_the_cached_pages_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: list[int] = []

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "sync fails")

    file = RealDisk().open(str(tmp_path / "file"), create=True)
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments[3]))
    with pytest.raises(OSError, match="sync fails"):
        file.sync()
    assert advice == [os.POSIX_FADV_DONTNEED]


def test_preallocated_space_is_taken_and_given_back_while_the_size_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = RealDisk().open(str(path), create=True)
    file.write_at(0, b"abc")
    file.sync()
    held = path.stat().st_blocks
    file.preallocate(1_000_000)
    if path.stat().st_blocks == held:
        pytest.skip("the file system of the temporary directory has no preallocation")
    assert path.stat().st_blocks * 512 >= 1_000_000
    assert (file.size(), path.read_bytes()) == (3, b"abc")
    file.write_at(3, b"def")
    assert path.stat().st_blocks * 512 >= 1_000_000
    file.truncate(6)
    assert path.stat().st_blocks == held
    assert path.read_bytes() == b"abcdef"
    file.preallocate(0)


def test_preallocation_that_the_file_system_lacks_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR, errno.ENOSPC]

    def fail(*_: object) -> int:
        ctypes.set_errno(numbers.pop(0))
        return -1

    file = RealDisk().open(str(tmp_path / "file"), create=True)
    monkeypatch.setattr(disk_module, "_fallocate", fail)
    file.preallocate(1000)
    file.preallocate(1000)
    assert numbers == [errno.EINTR, errno.ENOSPC]
    with pytest.raises(OSError, match="No space left") as caught:
        file.preallocate(1000)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "file"))
    assert numbers == []
    monkeypatch.setattr(disk_module, "_fallocate", None)
    file.preallocate(1000)


def test_preallocation_beyond_the_free_space_is_an_error(tmp_path: Path) -> None:
    """No megabyte of it is taken: the file system refuses a size that no file may have."""
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    with pytest.raises(OSError, match=r"too large|No space") as caught:
        file.preallocate(1 << 62)
    assert caught.value.errno in (errno.EFBIG, errno.ENOSPC)


def test_file_opened_to_read_refuses_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        RealDisk().open_to_read(str(path))
    path.write_bytes(b"abc")
    path.chmod(0o444)
    file = RealDisk().open_to_read(str(path))
    assert (file.size(), file.read_at(1, 5)) == (3, b"bc")
    changes: tuple[Callable[[], None], ...] = (
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        lambda: file.preallocate(10),
        file.sync,
    )
    for change in changes:
        with pytest.raises(OSError, match="for reading only") as caught:
            change()
        assert caught.value.errno == errno.EBADF
    file.close()
    assert path.read_bytes() == b"abc"


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    space = RealDisk().space(str(tmp_path))
    usage = shutil.disk_usage(tmp_path)
    assert space.total_bytes == usage.total
    assert 0 < space.free_bytes < space.total_bytes
    with pytest.raises(FileNotFoundError):
        RealDisk().space(str(tmp_path / "absent"))


def test_what_is_made_is_the_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    disk = RealDisk()
    before = os.umask(0)
    try:
        disk.make_directory(str(tmp_path / "made"))
        disk.open(str(tmp_path / "made" / "file"), create=True).close()
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "made" / "file").stat().st_mode & 0o777 == 0o600


def test_an_opener_makes_files_for_their_owner_and_changes_no_mode(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch()
    old.chmod(0o644)
    before = os.umask(0)
    try:
        for path in (old, new):
            with open(path, "ab", opener=owner_only) as file:
                file.write(b"x")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (old, new)] == [0o644, 0o600]


def test_files_that_others_may_read_are_told_and_left_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    tell_of_open_files(str(tmp_path / "missing"))
    closed, opened = tmp_path / "closed", tmp_path / "opened"
    closed.touch(mode=0o600)
    tell_of_open_files(str(tmp_path))
    assert caplog.text == ""
    opened.touch()
    opened.chmod(0o644)
    tell_of_open_files(str(tmp_path))
    assert f"path={opened} mode=644" in caplog.text
    assert opened.stat().st_mode & 0o777 == 0o644
