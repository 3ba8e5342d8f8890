"""`waltz bridge`: its commands, and the file that they share."""

from __future__ import annotations

from pathlib import Path

from tests.clusters import run_tool
from waltz.cli.bridge_group import PLACES


def test_each_command_is_there_and_says_what_it_does() -> None:
    for name in PLACES:
        said = run_tool("bridge", name, "--help")
        assert (said.code, "Usage" in said.out) == (0, True), name


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for name in PLACES:
        more = ["0", "1", "1", "--reason", "r"] if name == "skip" else []
        said = run_tool("bridge", name, tmp_path / "none.yml", *more)
        assert (said.code, "none.yml" in said.err) == (1, True), name
