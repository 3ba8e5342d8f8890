"""Audit logs on a simulated disk, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from waltz.audit.audit_entry import AuditDecision, AuditEntry
from waltz.audit.audit_file import AuditFile, AuditSettings
from waltz.audit.audit_verification import AuditLine, Verification
from waltz.sim.simulated_disk import SimulatedDisk

PATH = "/d/audit"


def entry(number: int) -> AuditEntry:
    return AuditEntry(number, AuditDecision.DENIED, "append", f"CN={number}", reason="why")


def opened(disk: SimulatedDisk, **settings: int) -> AuditFile:
    file = AuditFile(disk, AuditSettings(PATH, **settings), "server a", lambda: 0)  # type: ignore[arg-type]
    file.open()
    return file


def content(disk: SimulatedDisk, path: str = PATH) -> bytes:
    file = disk.open_to_read(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def files(disk: SimulatedDisk) -> list[bytes]:
    """Return the contents of the log's files, the oldest first."""
    paths = [f"{PATH}.{number}" for number in range(20, 0, -1)]
    return [content(disk, path) for path in (*paths, PATH) if disk.exists(path)]


def verified(contents: Sequence[bytes]) -> tuple[Verification, list[AuditLine]]:
    check = Verification()
    lines: list[AuditLine] = []
    for number, data in enumerate(contents):
        lines += check.read(str(number), data.splitlines(keepends=True))
    check.end()
    return check, lines


def principals(lines: Sequence[AuditLine]) -> list[str]:
    """Return the principals of the lines that are entries of a test."""
    return [each.fields["principal"] for each in lines if each.fields["principal"] is not None]
