"""The files of an audit log: kills, faults of the disk, replacement."""

from __future__ import annotations

import stat
from pathlib import Path
from random import Random

import pytest

from tests.audit.logs import PATH, content, entry, files, opened, principals, verified
from waltz.audit.audit_file import AuditFile, AuditSettings
from waltz.errors import ConfigurationError
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.system.real_disk import RealDisk


def named(first: int, last: int) -> list[str]:
    return [f"CN={number}" for number in range(first, last + 1)]


def test_a_process_goes_on_where_the_one_before_ended() -> None:
    disk = SimulatedDisk(["/d"])
    for start in (0, 3):
        file = opened(disk)
        file.write([entry(start), entry(start + 1)])
        file.write([entry(start + 2)])
        file.close()
    check, lines = verified(files(disk))
    assert (check.findings, check.number) == ([], 8)
    assert principals(lines) == named(0, 5)


def test_a_process_may_be_killed_at_each_byte_of_a_write() -> None:
    """The disk has the bytes up to there, what was whole stays, and is followed."""
    whole = SimulatedDisk(["/d"])
    opened(whole).write([entry(0), entry(1)])
    data = content(whole)
    for end in range(len(data) + 1):
        torn = verified([data[:end]])[0]
        assert torn.fault_count == 0
        assert len(torn.findings) == (end > 0 and data[end - 1 : end] != b"\n")
        disk = SimulatedDisk(["/d"], contents={PATH: data[:end]})
        file = opened(disk)
        file.write([entry(2)])
        check, lines = verified(files(disk))
        assert check.fault_count == 0, (end, check.findings)
        kept = principals(verified([data[:end]])[1])
        is_only_unended = data[end : end + 1] == b"\n"
        assert principals(lines)[:-1] == (kept if not is_only_unended else principals(lines)[:-1])
        assert principals(lines)[-1] == "CN=2"
        assert content(disk).startswith(data[:end]), "nothing is taken away"


@pytest.mark.parametrize("seed", range(200))
def test_what_was_written_is_there_after_a_power_cut_wherever_it_comes(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=1_500, files_max=20)
    written = random.randrange(12)
    for number in range(written):
        file.write([entry(number)])
    operation = random.choice([DiskOperation.WRITE, DiskOperation.SYNC, DiskOperation.RENAME,
                               DiskOperation.SYNC_DIRECTORY, DiskOperation.OPEN])  # fmt: skip
    disk.fault = fail_nth(operation, random.randrange(1, 4), done=random.random(), forever=True)
    try:
        for number in range(written, 20):
            file.write([entry(number)])
            written += 1
    except OSError:
        pass
    after = disk.crash_clone(random)
    opened(after, bytes_max=1_500, files_max=20).write([entry(99)])
    found = principals(verified(files(after))[1])
    assert found[:written] == named(0, written - 1)
    assert found[-1] == "CN=99"


@pytest.mark.parametrize("operation", list(DiskOperation))
@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("done", [0.0, 0.5, 1.0])
def test_after_a_fault_of_the_disk_each_entry_is_there_once(
    operation: DiskOperation, number: int, done: float
) -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=900, files_max=20)
    disk.fault = fail_nth(operation, number, done=done)
    for each in range(12):
        for attempt in range(2):
            try:
                file.write([entry(each)])
                break
            except OSError:
                assert not attempt
    disk.fault = None
    check, lines = verified(files(disk))
    assert check.fault_count == 0, check.findings
    assert principals(lines) == named(0, 11)


@pytest.mark.parametrize("done", [0.5, 1.0])
def test_what_a_write_that_failed_has_left_is_not_behind_a_shorter_one(done: float) -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk)
    disk.fault = fail_nth(DiskOperation.WRITE, 1, done=done)
    with pytest.raises(OSError, match="write number 1 fails"):
        file.write([entry(number) for number in range(9)])
    disk.fault = None
    file.write([entry(20)])
    check, lines = verified(files(disk))
    assert (check.findings, principals(lines)) == ([], ["CN=20"])


def test_a_large_file_is_replaced_and_the_oldest_goes() -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=1_000, files_max=3)
    for number in range(40):
        file.write([entry(number)])
    assert disk.list_directory("/d") == ["audit", "audit.1", "audit.2", "audit.lock"]
    check, lines = verified(files(disk))
    assert check.fault_count == 0
    assert [each.text.partition(":")[2] for each in check.findings] == [" older files are not here"]
    assert principals(lines)[-1] == "CN=39"
    assert all(len(each) < 2_000 for each in files(disk))


def test_a_log_that_may_have_fewer_files_than_before_has_them_and_no_gap() -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=900, files_max=6)
    number = 0
    while not disk.exists(f"{PATH}.5"):
        file.write([entry(number)])
        number += 1
    file.close()
    file = opened(disk, bytes_max=900, files_max=3)
    for each in range(number, number + 9):
        file.write([entry(each)])
    assert disk.list_directory("/d") == ["audit", "audit.1", "audit.2", "audit.lock"]
    check, _ = verified(files(disk))
    assert check.fault_count == 0, check.findings


def test_replacing_that_fails_again_and_again_costs_one_old_file() -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=900, files_max=5)
    number = 0
    while not disk.exists(f"{PATH}.4") or len(content(disk)) < 900:
        file.write([entry(number)])
        number += 1
    kept = set(files(disk)[1:])
    disk.fault = fail_nth(DiskOperation.SYNC_DIRECTORY, 1, forever=True)
    for _ in range(9):
        with pytest.raises(OSError, match="fails"):
            file.write([entry(number)])
        assert kept <= {*files(disk)}
    disk.fault = None
    file.write([entry(number)])
    assert kept <= {*files(disk)}
    check, lines = verified(files(disk))
    assert check.fault_count == 0, check.findings
    assert principals(lines)[-1] == f"CN={number}"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("failing", range(1, 9))
def test_what_is_written_after_a_fault_of_the_directory_is_there_after_a_power_cut(
    failing: int, seed: int
) -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=900, files_max=20)
    disk.fault = fail_nth(DiskOperation.SYNC_DIRECTORY, failing)
    failed = False
    for number in range(20):
        try:
            file.write([entry(number)])
        except OSError:
            failed = True
            file.write([entry(number)])
            break
    assert failed
    after = disk.crash_clone(Random(seed))
    opened(after, bytes_max=900, files_max=20)
    assert principals(verified(files(after))[1]) == named(0, number)


@pytest.mark.parametrize("seed", range(8))
def test_a_file_is_written_to_only_once_its_name_is_durable(seed: int) -> None:
    """A process that ended before it synced the directory leaves such a file."""
    disk = SimulatedDisk(["/d"])
    disk.fault = fail_nth(DiskOperation.SYNC_DIRECTORY, 1)
    with pytest.raises(ConfigurationError, match="cannot write the audit log"):
        opened(disk)
    disk.fault = None
    opened(disk).write([entry(0)])
    after = disk.crash_clone(Random(seed))
    opened(after)
    assert principals(verified(files(after))[1]) == ["CN=0"]


def test_a_process_that_was_killed_while_it_replaced_a_file_follows_on_the_one_before() -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk)
    file.write([entry(0)])
    file.close()
    disk.rename(PATH, f"{PATH}.1")
    opened(disk).write([entry(1)])
    check, lines = verified(files(disk))
    assert (check.findings, principals(lines)) == ([], ["CN=0", "CN=1"])
    disk.rename(f"{PATH}.1", f"{PATH}.2")
    disk.rename(PATH, f"{PATH}.1")
    disk.open(PATH, create=True).write_at(0, b'{"num')
    again = SimulatedDisk(["/d"], contents={
        f"{PATH}{end}": content(disk, f"{PATH}{end}") for end in ("", ".1", ".2")
    })  # fmt: skip
    opened(again).write([entry(2)])
    check, lines = verified(files(again))
    assert (check.fault_count, principals(lines)) == (0, ["CN=0", "CN=1", "CN=2"])


@pytest.mark.parametrize("data", [b"important\n", b"important", b"{}\n", b'{"a":1}\n', b"\x00" * 9])
def test_a_file_that_is_no_audit_log_is_left_alone(data: bytes) -> None:
    disk = SimulatedDisk(["/d"], contents={PATH: data})
    with pytest.raises(ConfigurationError, match="is no audit log; move it away"):
        opened(disk)
    assert content(disk) == data


def test_two_processes_do_not_write_to_one_file() -> None:
    disk = SimulatedDisk(["/d"])
    first = opened(disk)
    with pytest.raises(ConfigurationError, match="another process writes"):
        opened(disk)
    first.close()
    opened(disk)


def test_a_directory_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="cannot write the audit log /d/audit"):
        opened(SimulatedDisk())


def test_the_files_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    file = AuditFile(RealDisk(), AuditSettings(str(path), bytes_max=500), "p", lambda: 0)
    file.open()
    for number in range(3):
        file.write([entry(number)])
    file.close()
    found = sorted(tmp_path.iterdir())
    assert [each.name for each in found] == ["audit", "audit.1", "audit.2", "audit.lock"]
    assert {stat.S_IMODE(each.stat().st_mode) for each in found} == {0o600}
