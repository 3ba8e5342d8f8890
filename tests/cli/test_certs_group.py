"""`waltz certs`: its commands."""

from __future__ import annotations

from tests.clusters import run_tool
from waltz.cli.certs_group import PLACES


def test_each_command_is_there_and_says_what_it_does() -> None:
    for name in PLACES:
        said = run_tool("certs", name, "--help")
        assert (said.code, "--directory" in said.out) == (0, True), name
