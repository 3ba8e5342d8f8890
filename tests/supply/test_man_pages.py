"""Man pages: one per command, the same bytes each time, and nothing in them is an instruction."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from supply.man_pages import escaped, write_pages
from tests.cli.test_commands import commands_of
from tests.clusters import run_tool
from waltz.cli.commands import waltz

MADE = datetime(2026, 1, 2, tzinfo=UTC)
INSTRUCTIONS = {".TH", ".SH", ".B", ".BR", ".TP", ".PP", ".br"}


def test_each_command_has_a_page_with_its_options(tmp_path: Path) -> None:
    pages = {path.stem: path.read_text() for path in write_pages(tmp_path, MADE)}
    for name, command in commands_of(waltz):
        text = pages[f"waltz-{name.replace(' ', '-')}"]
        assert '"2026\\-01\\-02"' in text
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("--") or escaped(option) in text, (name, option)


def test_a_line_is_an_instruction_only_where_the_page_has_one(tmp_path: Path) -> None:
    for path in write_pages(tmp_path, MADE):
        for line in path.read_text().splitlines():
            if line.startswith((".", "'")):
                assert line.split()[0] in INSTRUCTIONS, (path, line)
    assert escaped(".so /etc/passwd\n'x \\n") == "\\&.so /etc/passwd\n\\&'x \\en"


def test_the_same_commands_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = (write_pages(tmp_path / name, MADE) for name in ("one", "other"))
    assert [each.read_bytes() for each in one] == [each.read_bytes() for each in other]
    assert all(re.fullmatch(r"waltz[a-z-]*\.1", each.name) for each in one)


def test_pages_know_the_short_name_of_help_and_leave_commands_as_they_are(tmp_path: Path) -> None:
    """Click keeps the names of a command's help option from its first use."""
    written = {each.name: each for each in write_pages(tmp_path, MADE)}
    assert "\\-h, \\-\\-help" in written["waltz-admin-storage-access.1"].read_text()
    assert run_tool("admin", "storage", "access", "-h").code == 0
