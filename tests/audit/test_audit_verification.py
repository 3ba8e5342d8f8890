"""Every change of an audit log is found; what reads it shares no code with what writes it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.audit.logs import entry, files, opened, verified
from waltz.audit import audit_verification
from waltz.audit.audit_verification import Verification
from waltz.sim.simulated_disk import SimulatedDisk


def log(count: int = 5) -> list[bytes]:
    """Return the lines of a log."""
    disk = SimulatedDisk(["/d"])
    opened(disk).write([entry(number) for number in range(count)])
    (data,) = files(disk)
    return data.splitlines(keepends=True)


LINES = log()


def faults(lines: list[bytes]) -> list[int]:
    """Return the numbers of the lines with a fault, counted from 1."""
    check, _ = verified([b"".join(lines)])
    return [each.line for each in check.findings if each.is_fault]


def test_a_log_without_a_change_has_no_fault_and_its_end_is_told() -> None:
    check, lines = verified([b"".join(LINES)])
    assert (check.findings, check.line_count, check.number) == ([], 6, 6)
    assert check.chain == json.loads(LINES[-1])["chain"] == lines[-1].chain


@pytest.mark.parametrize("place", range(1, 5))
def test_a_line_that_was_cut_out_is_found_where_it_was(place: int) -> None:
    assert faults([*LINES[:place], *LINES[place + 1 :]]) == [place + 1]
    check, _ = verified([b"".join([*LINES[:place], *LINES[place + 1 :]])])
    assert f"after {place} comes {place + 2}" in check.findings[0].text


def test_lines_cut_out_at_the_beginning_are_found() -> None:
    assert faults(LINES[1:]) == [1]


@pytest.mark.parametrize("place", range(6))
def test_a_byte_that_was_changed_is_found_wherever_it_is(place: int) -> None:
    line = LINES[place]
    for at in range(0, len(line) - 1, 7):
        changed = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
        assert faults([*LINES[:place], changed, *LINES[place + 1 :]]) or place == 5
    if place == 5:
        check, _ = verified([b"".join([*LINES[:5], line.replace(b"why", b"who")])])
        assert check.fault_count == 1


@pytest.mark.parametrize("place", range(5))
def test_lines_that_were_swapped_doubled_or_put_in_are_found(place: int) -> None:
    swapped = [*LINES[:place], LINES[place + 1], LINES[place], *LINES[place + 2 :]]
    assert faults(swapped)
    assert faults([*LINES[: place + 1], *LINES[place:]]) == [place + 2]
    stranger = log(9)[place + 1].replace(b"CN=", b"CN=x")
    assert faults([*LINES[: place + 1], stranger, *LINES[place + 1 :]])
    assert faults([*LINES[: place + 1], b"\n", *LINES[place + 1 :]]) == [place + 2]


def test_a_forged_end_of_a_process_does_not_hide_a_line_that_was_cut() -> None:
    """Half of a line, and after it the next process, would pass for a kill; the chain tells."""
    disk = SimulatedDisk(["/d"])
    for number in range(2):
        file = opened(disk)
        file.write([entry(number)])
        file.close()
    (data,) = files(disk)
    lines = data.splitlines(keepends=True)
    cut = [*lines[:1], lines[1][:50] + b"\n", *lines[2:]]
    assert faults(cut) == [2, 3]


def test_files_have_to_follow_on_each_other() -> None:
    disk = SimulatedDisk(["/d"])
    file = opened(disk, bytes_max=600, files_max=9)
    for number in range(8):
        file.write([entry(number)])
    found = files(disk)
    assert len(found) > 3
    assert verified(found)[0].findings == []
    assert verified([found[0], *found[2:]])[0].fault_count == 1
    missing = verified(found[1:])[0]
    assert (missing.fault_count, len(missing.findings)) == (0, 1)


def test_a_chain_that_was_kept_elsewhere_is_looked_for() -> None:
    chain = json.loads(LINES[3])["chain"]
    check = Verification()
    list(check.read("a", LINES, [chain, "f" * 64]))
    assert check.chains == {chain}
    cut = Verification()
    list(cut.read("a", LINES[:3], [chain]))
    assert cut.chains == set()


@pytest.mark.parametrize(
    "line", [b"\n", b"x\n", b"{}\n", b"[" * 100_000 + b"\n", b"\xff\n", b"\x00"]
)
def test_what_is_no_line_is_told_and_read_over(line: bytes) -> None:
    assert faults([*LINES[:3], line, *LINES[3:]])
    hostile = b"[" * 10_000 + b',"chain":"%s"}\n' % (b"0" * 64)
    assert faults([*LINES, hostile, hostile]) == [7]


def test_what_reads_shares_nothing_with_what_writes() -> None:
    tree = ast.parse(Path(audit_verification.__file__).read_text())
    imported = [each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    assert not [each for each in imported if each and each.startswith("waltz")]
