"""Real files: positions, names, locks between processes, and what a failed sync leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltz.errors import DirectoryInUseError
from waltz.system.disk import RealDisk


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
