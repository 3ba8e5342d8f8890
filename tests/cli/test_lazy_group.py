"""A group that imports a command only when it is called or completed."""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from waltz.cli.lazy_group import CommandPlace, LazyGroup


@click.group(
    cls=LazyGroup,
    places={
        "hello": CommandPlace("tests.cli.lazy_command", "hello", "Say hello."),
        "missing": CommandPlace("tests.cli.no_such_module", "missing", "Never loaded."),
    },
)
def group() -> None:
    """Some commands."""


def test_help_and_completion_import_no_command() -> None:
    sys.modules.pop("tests.cli.lazy_command", None)
    shown = CliRunner().invoke(group, ["--help"])
    assert "hello    Say hello.\n  missing  Never loaded." in shown.output
    complete = ShellComplete(group, {}, "group", "_GROUP_COMPLETE")
    assert [each.value for each in complete.get_completions([], "")] == ["hello", "missing"]
    assert [each.value for each in complete.get_completions([], "h")] == ["hello"]
    assert "tests.cli.lazy_command" not in sys.modules


def test_a_command_is_imported_when_it_is_called() -> None:
    done = CliRunner().invoke(group, ["hello", "--name", "log"])
    assert (done.exit_code, done.output) == (0, "hello, log\n")


def test_a_command_completes_its_options() -> None:
    complete = ShellComplete(group, {}, "group", "_GROUP_COMPLETE")
    assert "--name" in [each.value for each in complete.get_completions(["hello"], "--n")]


def test_a_name_that_is_no_command_is_refused() -> None:
    done = CliRunner().invoke(group, ["helo"])
    assert done.exit_code == 2
    assert "No such command 'helo'" in done.output
