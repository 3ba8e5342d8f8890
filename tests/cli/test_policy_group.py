"""The group of commands about policies."""

from __future__ import annotations

from click.testing import CliRunner

from waltz.cli.policy_group import PLACES, policy


def test_the_group_lists_its_commands() -> None:
    shown = CliRunner().invoke(policy, ["--help"]).output
    assert all(name in shown for name in PLACES)
