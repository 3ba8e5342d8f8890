"""The group of commands about audit logs."""

from __future__ import annotations

from click.testing import CliRunner

from waltz.cli.audit_group import PLACES, audit


def test_the_group_lists_its_commands() -> None:
    shown = CliRunner().invoke(audit, ["--help"]).output
    assert all(name in shown for name in PLACES)
