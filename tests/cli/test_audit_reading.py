"""`waltz audit verify` and `waltz audit show` on files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from waltz.audit.audit_entry import AuditDecision, AuditEntry
from waltz.audit.audit_file import AuditFile, AuditSettings
from waltz.cli.audit_reading import files_of, show, verify
from waltz.errors import ConfigurationError
from waltz.system.real_disk import RealDisk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log in three files."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(RealDisk(), AuditSettings(str(path), bytes_max=1_200), "server a", lambda: 0)
    file.open()
    for number in range(9):
        denied = AuditDecision.DENIED
        verb = "append" if number % 2 else "read"
        entry = AuditEntry(0, denied, verb, f"CN={number % 3}", "p:1", 3, "no role", 12)
        file.write([entry])
    file.close()
    (tmp_path / "audit.jsonl.lock.x").touch()
    (tmp_path / "audit.jsonl.01").touch()
    return path


def printed(command: object, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, arguments)  # type: ignore[arg-type]
    assert result.exit_code == code, (result.output, result.exception)
    return str(result.output)


def test_all_files_of_a_log_are_read_oldest_first(path: Path) -> None:
    names = [each.name for each in files_of(str(path))]
    assert names == [
        *(f"audit.jsonl.{number}" for number in range(len(names) - 1, 0, -1)),
        path.name,
    ]
    assert len(names) > 2
    shown = printed(verify, str(path)).splitlines()
    assert shown[0].endswith(" lines, 0 faults")
    assert shown[1].startswith(f"the last line has the number {shown[0].split()[0]} and the chain ")


def test_a_log_that_is_replaced_while_it_is_read_is_read_as_it_was(
    path: Path, tmp_path: Path
) -> None:
    """The oldest file comes through a pipe, so that nothing else is read before it ends."""
    before = json.loads(printed(verify, str(path), "--json"))
    names = [
        path,
        *(path.with_name(f"{path.name}.{n}") for n in range(1, len(files_of(str(path))))),
    ]
    oldest = names[-1].read_bytes()
    names[-1].unlink()
    os.mkfifo(names[-1])

    def replace() -> None:
        with names[-1].open("wb") as pipe:
            for name in reversed(names):
                number = int(name.suffix[1:]) if name != path else 0
                name.rename(path.with_name(f"{path.name}.{number + 1}"))
            path.write_bytes(b"")
            pipe.write(oldest)

    thread = Thread(target=replace, daemon=True)
    thread.start()
    found = json.loads(printed(verify, str(path), "--json"))
    thread.join()
    assert (found["faults"], found["chain"]) == (0, before["chain"])


def test_a_changed_line_ends_with_1_and_is_named(path: Path) -> None:
    older = path.with_name("audit.jsonl.1")
    older.write_bytes(older.read_bytes().replace(b"no role", b"no rule", 1))
    assert f"{older}, line 2: fault: does not follow on the line" in printed(
        verify, str(path), code=1
    )
    found = json.loads(printed(verify, str(path), "--json", code=1))
    assert (found["faults"], found["findings"][0]["line"]) == (1, 2)


def test_a_line_that_was_not_finished_is_told_and_is_no_fault(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    assert "note: the last line was not finished" in printed(verify, str(path))
    assert json.loads(printed(verify, str(path), "--json"))["faults"] == 0


def test_what_was_cut_off_at_the_end_is_found_by_a_chain_that_was_kept(path: Path) -> None:
    chain = json.loads(printed(verify, str(path), "--json"))["chain"]
    assert json.loads(printed(verify, str(path), "--contains", chain, "--json"))["contained"]
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\n", 0, -1) + 1])
    printed(verify, str(path))
    assert "no line has the chain" in printed(verify, str(path), "--contains", chain, code=1)


def test_entries_are_shown_and_chosen_by_principal_and_verb(path: Path) -> None:
    lines = printed(show, str(path), "--principal", "CN=1", "--verb", "append").splitlines()
    shown = (
        "1970-01-01T00:00:00.000+00:00 server a denied append principal=CN=1 peer=p:1 partition=3"
        " connection=12 reason=no role"
    )
    assert lines == [shown, shown]
    found = [json.loads(each) for each in printed(show, str(path), "--json").splitlines()]
    assert [each["number"] for each in found] == list(range(1, len(found) + 1))


def test_what_somebody_put_into_a_file_does_not_act_on_the_terminal(path: Path) -> None:
    text = path.read_text().replace("no role", "\\u001b[2J\\u202e")
    path.write_text(text)
    shown = printed(show, str(path))
    assert all(each.isprintable() for each in shown.splitlines())
    assert "\\x1b[2J\\u202e" in shown


def test_what_is_no_line_ends_with_1(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"x" * (3 << 20), b"\n", *lines[1:]]))
    assert "something in the files is no line" in printed(show, str(path), code=1)
    printed(verify, str(path), code=1)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("x", "y/x"):
        result = CliRunner().invoke(verify, [str(tmp_path / name)])
        assert isinstance(result.exception, ConfigurationError)
