"""The tree of `waltz restore`."""

from __future__ import annotations

import pytest

from tests.clusters import run_tool
from waltz.cli.restore_group import PLACES


def test_the_commands_are_listed() -> None:
    listed = run_tool("restore", "--help").out
    assert all(name in listed for name in PLACES)


@pytest.mark.parametrize("command", ["plan", "cluster", "storage", "drill"])
def test_an_archive_that_is_not_there_is_said_to_be_missing(command: str) -> None:
    options = {
        "cluster": ["--coordinator", "127.0.0.1:1"],
        "storage": ["--coordinator", "127.0.0.1:1", "-s", "a:1", "--directory", "x"],
    }
    said = run_tool("restore", command, *options.get(command, []))
    assert (said.code, "Missing argument 'ARCHIVE'" in said.err) == (2, True)
    if command != "storage":
        said = run_tool("restore", command, "file:///nowhere/at/all", *options.get(command, []))
        assert said.code == 1
        assert "/nowhere/at/all" in said.err
