"""The commands of `waltz`: each is where the list says, and listing them imports none of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import click
import pytest

from waltz.cli.commands import PLACES, waltz

MODULES_MAX = 260
"""Modules of a process that shows `waltz --help`; Python, click and what they import are 220."""

HEAVY = ("numpy", "asyncio", "rich", "yaml", "kazoo", "cryptography", "waltz.client", "waltz.wire")


def imported_by(*arguments: str, **environment: str) -> list[str]:
    """Return the modules that a `waltz` command has imported when it ends."""
    program = (
        "import atexit, json, sys; sys.argv[0] = 'waltz';"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr));"
        "from waltz.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    modules: list[str] = json.loads(done.stderr.splitlines()[-1])
    return modules


@pytest.mark.parametrize("name", PLACES)
def test_each_command_is_where_the_list_says(name: str) -> None:
    command = waltz.get_command(click.Context(waltz), name)
    assert command is not None
    assert command.name == name


def test_help_and_completion_import_little() -> None:
    for arguments, environment in (
        (["--help"], {}),
        (["--version"], {}),
        (["nosuch"], {}),
        ([], {"_WALTZ_COMPLETE": "bash_complete", "COMP_WORDS": "waltz ", "COMP_CWORD": "1"}),
    ):
        modules = imported_by(*arguments, **environment)
        assert [each for each in HEAVY if each in modules] == []
        assert len(modules) <= MODULES_MAX


def test_ctrl_c_during_the_imports_is_no_traceback() -> None:
    """The interrupt comes with the first module of the command, as early as a test can be sure."""
    program = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from waltz.cli.main import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
