"""The audit log of a process: written within a second, and what happens if it cannot be."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.audit.logs import principals, verified
from tests.client.fake_cluster import until
from tests.clusters import ROOT
from waltz.audit.audit_entry import AuditDecision
from waltz.audit.audit_file import AuditSettings
from waltz.audit.audit_shell import Audit
from waltz.audit.pending_entries import ENTRIES_MAX, RESERVED_ENTRIES, Summed
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.system.real_host import real_host

FULL = "the audit log takes no entries: its disk is full, or does not keep up"


KEPT = ENTRIES_MAX - RESERVED_ENTRIES


def play(
    scene: Callable[[Audit, SimulatedDisk], Awaitable[None]], *, is_strict: bool = False
) -> SimulatedDisk:
    disk = SimulatedDisk(["/d"])

    async def main() -> None:
        host = replace(real_host(None), disk=disk)
        audit = Audit(host, AuditSettings("/d/audit", is_strict), "server a")
        await audit.start()
        await scene(audit, disk)
        disk.fault = None
        await audit.stop()
        await audit.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))
    return disk


def written(disk: SimulatedDisk) -> list[str]:
    file = disk.open_to_read("/d/audit")
    check, lines = verified([file.read_at(0, file.size())])
    assert check.findings == []
    return principals(lines)


def deny(audit: Audit, principal: str) -> None:
    audit.note(AuditDecision.DENIED, "append", principal, "10.0.0.1:5", partition=3, reason="why")


def test_an_entry_is_written_and_synced_soon_and_what_waits_when_the_process_ends() -> None:
    async def scene(audit: Audit, disk: SimulatedDisk) -> None:
        deny(audit, "CN=a")
        standing = audit.standing()
        assert standing is not None
        assert standing.waiting == 1
        await until(lambda: (found := audit.standing()) is not None and found.written == 1)
        assert disk.files.unsynced_count == 0
        deny(audit, "CN=b")
        audit.add(Summed("CN=c", "append", 3, 7), 5)

    assert written(play(scene)) == ["CN=a", "CN=b", "CN=c"]


def test_while_the_disk_is_full_operators_are_refused_data_goes_on_and_nothing_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(audit: Audit, disk: SimulatedDisk) -> None:
        assert audit.refusal(is_data=False) is None
        disk.fault = fail_nth(DiskOperation.WRITE, 1, errno.ENOSPC, forever=True)
        deny(audit, "CN=a")
        await until(lambda: audit.refusal(is_data=False) == FULL)
        assert audit.refusal(is_data=True) is None
        deny(audit, "CN=b")
        disk.fault = None
        await until(lambda: audit.refusal(is_data=False) is None)

    assert written(play(scene)) == ["CN=a", "CN=b"]
    messages = [each.getMessage() for each in caplog.records]
    assert sum(each.startswith("audit_failed error=") for each in messages) == 1


def test_a_strict_log_that_is_full_refuses_data_too() -> None:
    async def scene(audit: Audit, disk: SimulatedDisk) -> None:
        disk.fault = fail_nth(DiskOperation.SYNC, 1, forever=True)
        deny(audit, "CN=a")
        await until(lambda: audit.refusal(is_data=True) == FULL)

    play(scene, is_strict=True)


def test_entries_beyond_the_bound_are_lost_counted_logged_and_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(audit: Audit, disk: SimulatedDisk) -> None:
        disk.fault = fail_nth(DiskOperation.WRITE, 1, errno.ENOSPC, forever=True)
        for number in range(KEPT + 5):
            deny(audit, f"CN={number}")
        standing = audit.standing()
        assert standing is not None
        assert (standing.waiting, standing.lost) == (KEPT, 5)

    disk = play(scene)
    assert written(disk) == [f"CN={number}" for number in range(KEPT)]
    file = disk.open_to_read("/d/audit")
    (lost,) = [
        each.fields
        for each in verified([file.read_at(0, file.size())])[1]
        if each.fields["decision"] == "lost"
    ]
    assert lost["count"] == 5
    messages = [each.getMessage() for each in caplog.records]
    assert "audit_lost decision=denied verb=append principal=CN=9000" in "\n".join(messages)


def test_without_a_file_nothing_is_kept_and_nobody_refused() -> None:
    async def main(host: Host) -> None:
        audit = Audit(host, None, "server a")
        await audit.start()
        deny(audit, "CN=a")
        audit.add(Summed("CN=c", "append", 3, 7), 5)
        assert audit.standing() is None
        assert audit.refusal(is_data=False) is None
        await audit.stop()

    asyncio.run(main(real_host(None)))


def test_a_process_does_not_start_without_its_audit_log(tmp_path: Path) -> None:
    async def main() -> None:
        await Audit(real_host(None), AuditSettings(str(tmp_path / "no" / "a")), "p").start()

    with pytest.raises(ConfigurationError, match="cannot write the audit log"):
        asyncio.run(main())


WRITER = """
import asyncio, sys
from waltz.audit.audit_entry import AuditDecision
from waltz.audit.audit_file import AuditFile, AuditSettings
from waltz.audit.audit_entry import AuditEntry
from waltz.system.real_disk import RealDisk

settings = AuditSettings(sys.argv[1], bytes_max=200_000, files_max=50)
file = AuditFile(RealDisk(), settings, "p", lambda: 0)
file.open()
number = int(sys.argv[2])
while True:
    names = [f"CN={number + each}" for each in range(50)]
    file.write([AuditEntry(0, AuditDecision.DENIED, "append", name) for name in names])
    number += 50
    print(number, flush=True)
"""


def test_a_log_whose_process_is_killed_again_and_again_is_whole(tmp_path: Path) -> None:
    """SIGKILL at random points; what a process has said it wrote is there, in order, without a
    fault."""
    random = Random(7)
    path, number = tmp_path / "audit", 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout is not None
        said = [process.stdout.readline()]
        time.sleep(random.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
        process.wait()
        number = max(int(each) for each in said if each.endswith("\n")) + 1_000_000
    found = sorted(tmp_path.glob("audit.[0-9]*"), key=lambda each: -int(each.suffix[1:]))
    if path.exists():  # the last process may have died between two files
        found.append(path)
    check, lines = verified([each.read_bytes() for each in found])
    assert check.fault_count == 0, check.findings
    numbers = [int(each[3:]) for each in principals(lines)]
    assert numbers == sorted(set(numbers))
    last_said = number - 1_000_000
    assert last_said - 1 in numbers
