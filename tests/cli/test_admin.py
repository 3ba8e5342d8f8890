"""The tree of `waltz admin` (TL-01)."""

from __future__ import annotations

import click
import pytest

from tests.clusters import run_tool
from waltz.cli.admin import admin

COMMANDS = {
    "storage": [
        "access",
        "add-partition",
        "availability",
        "list",
        "max-transaction-id",
        "recover-partition",
        "remove-partition",
        "sync-partitions",
        "validate",
    ],
    "server": ["add-preferred-partition", "remove-preferred-partition"],
}


@pytest.mark.parametrize("group", COMMANDS)
def test_every_command_of_the_original_s_tools_is_there(group: str) -> None:
    """TL-20 to TL-27, TL-31, TL-32"""
    found = admin.commands[group]
    assert isinstance(found, click.Group)
    assert sorted(found.list_commands(click.Context(found))) == COMMANDS[group]
    for command in COMMANDS[group]:
        said = run_tool("admin", group, command, "-h")
        assert said.code == 0
        for option in ("--zookeeper", "--cluster", "--cli-config-path", "--json"):
            assert option in said.out


def test_without_a_command_or_with_a_wrong_one_the_list_is_shown() -> None:
    """TL-01"""
    for arguments in ((), ("storage",), ("server",)):
        said = run_tool("admin", *arguments)
        assert said.code == 2
        assert "Commands:" in said.err
    wrong = run_tool("admin", "storage", "nope")
    assert (wrong.code, "No such command 'nope'" in wrong.err) == (2, True)


def test_what_is_missing_is_named() -> None:
    """TL-01"""
    said = run_tool("admin", "storage", "add-partition", "--cluster", "a:1", "-p", "1")
    assert (said.code, "Missing option '-s'" in said.err) == (2, True)
