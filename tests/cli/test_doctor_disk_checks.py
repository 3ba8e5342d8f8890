"""Checks of a directory, by value; and one that is measured."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from waltz.cli.doctor.disk_checks import (
    SYNC_SECONDS_SLOW,
    SYNCS,
    DiskState,
    disk_findings,
    existing,
    failure_finding,
    file_system_of,
    kind_finding,
    space_finding,
    sync_finding,
)
from waltz.storage.directory.space import FREE_MINIMUM, FreeMinimum

MOUNTS = (
    "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
    "2 1 8:2 / /data rw - xfs /dev/sdb1 rw\n"
    "3 2 0:9 / /data/my\\040disk rw - tmpfs tmpfs rw\n"
    "4 1 8:3 / /data rw - btrfs /dev/sdc1 rw\n"
    "5 1 0:9 / /données rw - tmpfs tmpfs rw\n"
    "a line of another kind\n"
)


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("/var", "ext4"),
        ("/data/a", "btrfs"),
        ("/data/my disk/x", "tmpfs"),
        ("/database", "ext4"),
        ("/données/x", "tmpfs"),
    ],
)
def test_a_directory_lies_on_the_last_mount_at_the_deepest_place(
    directory: str, expected: str
) -> None:
    assert file_system_of(Path(directory), MOUNTS) == expected


def test_mounts_that_do_not_say_it_leave_it_unknown() -> None:
    assert file_system_of(Path("/data"), "") is None
    assert kind_finding("/data", None).is_well is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("ext4", True), ("tmpfs", False), ("nfs4", None), ("fuse.sshfs", None), ("xfs", True)],
)
def test_file_systems_are_told_apart(kind: str, expected: bool | None) -> None:
    assert kind_finding("/data", kind).is_well is expected


def test_space_is_judged_by_what_the_node_keeps_free() -> None:
    state = DiskState("ext4", 99, 1000, ())
    assert space_finding("/data", state, FreeMinimum(10.0, 10_000)).is_well is False
    assert space_finding("/data", state, FreeMinimum(9.0, 10_000)).is_well is True


def test_syncs_are_judged_by_their_median() -> None:
    quick, slow = SYNC_SECONDS_SLOW / 100, SYNC_SECONDS_SLOW * 2
    assert sync_finding("/data", (quick, quick, slow)).is_well is True
    assert sync_finding("/data", (quick, slow, slow)).is_well is False


def test_a_directory_that_is_not_there_yet_is_measured_above_it(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path
    found = {each.check: each for each in disk_findings(str(tmp_path / "a" / "b"), FREE_MINIMUM)}
    assert {*found} == {"disk-kind", "disk-space", "disk-sync"}
    assert f"{SYNCS} writes" in found["disk-sync"].found
    assert [*tmp_path.iterdir()] == []


def test_a_path_that_is_no_directory_is_wrong_whatever_lies_above_it(tmp_path: Path) -> None:
    """A node could make no directory there; the one above it says nothing."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "file/a", "link", "link/a"):
        (found,) = disk_findings(str(tmp_path / name), FREE_MINIMUM)
        assert (found.is_well, found.found) == (False, "no directory")


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.EACCES, "this user cannot write files there"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EMFILE, "the system refuses it"),
    ],
)
def test_the_cause_of_a_failed_measurement_is_that_of_its_error(number: int, cause: str) -> None:
    error = OSError(number, os.strerror(number))
    found = failure_finding("/data", Path("/data"), error)
    assert (found.is_well, found.cause) == (False, cause)
