"""`waltz attest`: its commands."""

from __future__ import annotations

from tests.clusters import run_tool
from waltz.cli.attest_group import PLACES


def test_each_command_is_there_and_says_what_it_does() -> None:
    for name in PLACES:
        said = run_tool("attest", name, "--help")
        assert (said.code, "key" in said.out) == (0, True), name
