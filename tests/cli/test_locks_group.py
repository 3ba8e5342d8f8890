"""The tree of `waltz locks`."""

from __future__ import annotations

from click.testing import CliRunner

from waltz.cli.commands import waltz


def test_the_commands_are_listed_and_refusals_are_those_of_a_partition() -> None:
    listed = CliRunner().invoke(waltz, ["locks", "--help"]).output
    assert "top" in listed
    assert "refusals" in listed
    missing = CliRunner().invoke(waltz, ["locks", "refusals", "--cluster", "127.0.0.1:1"])
    assert (missing.exit_code, "--partition" in missing.output) == (2, True)
    wrong = ["locks", "refusals", "--cluster", "127.0.0.1:1", "--partition", "0", "--lock", "a:b"]
    refused = CliRunner().invoke(waltz, wrong)
    assert (refused.exit_code, "expected a lock as NAME:NUMBER" in refused.output) == (2, True)
