"""`waltz archive`: its commands, and the file that they share."""

from __future__ import annotations

from pathlib import Path

from tests.clusters import run_tool
from waltz.cli.archive_group import PLACES


def test_each_command_is_there_and_says_what_it_does() -> None:
    for name in PLACES:
        said = run_tool("archive", name, "--help")
        assert (said.code, "FILE" in said.out) == (0, True), name


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for name in PLACES:
        more = ["friday"] if name == "cut" else []
        said = run_tool("archive", name, tmp_path / "none.yml", *more)
        assert (said.code, "none.yml" in said.err) == (1, True), name
