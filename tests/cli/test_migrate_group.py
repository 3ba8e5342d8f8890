"""The tree of `waltz migrate`."""

from __future__ import annotations

from tests.clusters import run_tool
from waltz.cli.migrate_group import PLACES


def test_its_commands_are_listed() -> None:
    said = run_tool("migrate", "--help")
    assert said.code == 0
    for name in PLACES:
        assert f"  {name} " in said.out
