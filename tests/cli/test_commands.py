"""The commands of `waltz`: each is where the list says, and listing them imports none of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from tests.shares import one_in
from tests.storage.inspected import our_files, write_files
from waltz.cli.admin import SERVER_PLACES, STORAGE_PLACES
from waltz.cli.certs_group import PLACES as CERTS
from waltz.cli.cluster_group import PLACES as CLUSTER
from waltz.cli.commands import PLACES, waltz
from waltz.cli.disk_group import PLACES as DISK
from waltz.cli.lazy_group import CommandPlace
from waltz.cli.locks_group import PLACES as LOCKS
from waltz.cli.policy_group import PLACES as POLICY
from waltz.cli.restore_group import PLACES as RESTORE

GROUP_MODULES_MAX = 15
"""Modules of ours that a process imports to show a list of commands."""

HEAVY = (
    "numpy", "asyncio", "rich", "yaml", "kazoo", "cryptography", "email", "sqlalchemy", "pyspark",
    "prometheus_client", "starlette", "uvicorn", "jinja2",
)  # fmt: skip
"""Libraries that cost a command 10 ms of processor time or more: each is in a row only if it is
needed there."""


class Row(NamedTuple):
    """A command until its first connection, or its end: it imports at most `modules` of Waltz, and
    these libraries of `HEAVY`."""

    command: str
    arguments: str
    modules: int
    heavy: tuple[str, ...]


AT = "--cluster 127.0.0.1:1"
NODE = f"{AT} -s 127.0.0.1:1 -p 0"
NOTHING = ()
LOOP = ("asyncio",)
RECORDS = ("asyncio", "numpy")
FILES = ("numpy",)
FILES_SHOWN = ("numpy", "rich")
LOOP_SHOWN = ("asyncio", "rich")
ROWS = (
    Row("up", "--help", 56, LOOP_SHOWN),
    Row("status", AT, 89, LOOP),
    Row("top", AT, 112, LOOP),
    Row("console", "--help", 105, LOOP),
    Row("append", f"{AT} --partition 0 x", 141, LOOP),
    Row("outcome", f"{AT} 1:1:1:1", 141, LOOP),
    Row("tail", f"{AT} --partition 0", 101, LOOP),
    Row("explain", f"{AT} 0:1", 124, LOOP),
    Row("locks top", AT, 100, LOOP),
    Row("locks refusals", f"{AT} --partition 0", 100, LOOP),
    Row("bisect", f"{AT} --partition 0 --test builtins:bool", 108, LOOP),
    Row("doctor", "--help", 54, LOOP),
    Row("server", "--help", 175, RECORDS),
    Row("storage", "--help", 108, RECORDS),
    Row("cluster create", f"{AT} -n a -p 1", 48, LOOP),
    Row("cluster delete", f"{AT} -n a", 48, LOOP),
    Row("cluster show-cluster-key", AT, 48, LOOP),
    Row("cluster status", AT, 90, LOOP),
    Row("cluster list", AT, 52, LOOP),
    Row("cluster add-storage", f"{AT} -s 127.0.0.1:1 -a 2 -g 1", 92, LOOP),
    Row("cluster remove-storage", f"{AT} -s 127.0.0.1:1", 92, LOOP),
    Row("cluster assign", NODE, 92, LOOP),
    Row("cluster unassign", NODE, 92, LOOP),
    Row("cluster exchange", "--help", 92, LOOP),
    Row("cluster auto-assign", "--help", 92, LOOP),
    Row("cluster add-partitions", "--help", 95, LOOP),
    Row("cluster check-connectivity", AT, 95, LOOP),
    Row("cluster verify", AT, 95, LOOP),
    Row("admin server add-preferred-partition", NODE, 84, LOOP),
    Row("admin server remove-preferred-partition", NODE, 84, LOOP),
    Row("admin storage list", AT, 69, LOOP),
    Row("admin storage add-partition", NODE, 95, LOOP),
    Row("admin storage remove-partition", NODE, 95, LOOP),
    Row("admin storage availability", f"{NODE} --online true", 95, LOOP),
    Row("admin storage access", f"{NODE} --reads on --writes on", 95, LOOP),
    Row("admin storage recover-partition", "--help", 70, LOOP_SHOWN),
    Row("admin storage sync-partitions", AT, 69, LOOP),
    Row("admin storage validate", AT, 95, LOOP),
    Row("admin storage max-transaction-id", NODE, 95, LOOP),
    Row("disk inspect", "{storage}", 50, FILES_SHOWN),
    Row("disk control-file", "{storage}", 50, FILES_SHOWN),
    Row("disk verify", "{storage}", 50, FILES),
    Row("disk statistic", "{storage}", 48, FILES_SHOWN),
    Row("disk dump", "--records {storage}/0", 48, FILES),
    Row("disk checksum", "{storage}", 48, FILES_SHOWN),
    Row("archive run", "--help", 60, LOOP),
    Row("archive status", "--help", 60, NOTHING),
    Row("archive cut", "--help", 75, LOOP),
    Row("archive cuts", "--help", 75, LOOP),
    Row("archive verify", "--help", 60, NOTHING),
    Row("archive repair", "--help", 60, NOTHING),
    Row("pipeline rebuild", "--help", 8, NOTHING),
    Row("pipeline report", "--help", 8, NOTHING),
    Row("pipeline run", "--help", 8, NOTHING),
    Row("pipeline status", "--help", 8, NOTHING),
    Row("pipeline tidy", "--help", 8, NOTHING),
    Row("pipeline verify", "--help", 8, NOTHING),
    Row("parked drop", "--help", 15, NOTHING),
    Row("parked list", "--help", 15, NOTHING),
    Row("parked retry", "--help", 15, NOTHING),
    Row("parked show", "--help", 15, NOTHING),
    Row("parked skip", "--help", 15, NOTHING),
    Row("consumers list", AT, 90, LOOP),
    Row("consumers show", f"{AT} orders", 90, LOOP),
    Row("consumers forget", f"{AT} orders --yes", 60, LOOP),
    Row("certs init", "--help", 20, NOTHING),
    Row("certs issue", "--help", 20, NOTHING),
    Row("certs renew", "--help", 20, NOTHING),
    Row("certs show", "--help", 20, NOTHING),
    Row("attest keygen", "--help", 20, NOTHING),
    Row("attest run", "--help", 20, NOTHING),
    Row("attest check", "--help", 60, LOOP),
    Row("prove", "--help", 20, NOTHING),
    Row("policy check", "--help", 25, ("yaml",)),
    Row("policy diff", "--help", 25, ("yaml",)),
    Row("policy who-can", "--help", 25, ("yaml",)),
    Row("policy test", "--help", 25, ("yaml",)),
    Row("verify-proof", "--help", 20, NOTHING),
    Row("witness", "--help", 60, LOOP),
    Row("bench", "--help", 40, LOOP),
    Row("restore plan", "--help", 60, FILES),
    Row("restore cluster", "--help", 107, RECORDS),
    Row("restore storage", "--help", 107, RECORDS),
    Row("restore drill", "--help", 105, RECORDS),
    Row("restore partition", "--help", 121, RECORDS),
    Row("clone", "--help", 113, ("asyncio", "numpy", "rich")),
)
"""A row per command. What a command imports to show its answer comes later; those that start
processes, and those that need a whole cluster to connect to, are called with `--help`."""

GROUPS = (
    "admin", "admin server", "admin storage", "archive", "attest", "certs", "cluster", "disk",
    "parked", "pipeline", "restore",
)  # fmt: skip

UNTIL_IT_CONNECTS = """
import json, os, sys
def report():
    print(json.dumps(sorted(sys.modules)), file=sys.stderr, flush=True)
def watch(event, arguments):
    if event == "socket.connect":
        report()
        os._exit(0)
sys.addaudithook(watch)
sys.modules["uvloop"] = None  # its connections are not audited
sys.argv[0] = "waltz"
from waltz.cli.main import main
try:
    main()
finally:
    report()
"""


def imported_by(*arguments: str, **environment: str) -> list[str]:
    """Return the modules that a `waltz` command has imported when it connects, or when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", UNTIL_IT_CONNECTS, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    modules: list[str] = json.loads(done.stderr.splitlines()[-1])
    return modules


def ours(modules: Iterable[str]) -> list[str]:
    return [each for each in modules if each.split(".")[0] == "waltz"]


def heavy(modules: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(HEAVY) & set(modules)))


def commands_of(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command of the tree that is no group, by its whole name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


@pytest.mark.parametrize("name", PLACES)
def test_each_command_is_where_the_list_says(name: str) -> None:
    command = waltz.get_command(click.Context(waltz), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize(
    "places",
    [PLACES, CERTS, CLUSTER, DISK, LOCKS, POLICY, RESTORE, STORAGE_PLACES, SERVER_PLACES],
)
def test_each_line_of_a_list_is_how_its_command_describes_itself(
    places: Mapping[str, CommandPlace],
) -> None:
    for name, place in places.items():
        command = getattr(import_module(place.module), place.name)
        assert command.name == name
        if command.help is not None and places is not PLACES:
            said = " ".join(command.help.split())
            assert said.startswith(place.short_help.rstrip(".")), name


def test_help_and_completion_import_little() -> None:
    for arguments, environment in (
        (["--help"], {}),
        (["--version"], {}),
        (["nosuch"], {}),
        ([], {"_WALTZ_COMPLETE": "bash_complete", "COMP_WORDS": "waltz ", "COMP_CWORD": "1"}),
        *[([*group.split(), "--help"], {}) for group in GROUPS],
    ):
        modules = imported_by(*arguments, **environment)
        # Click finds out the version with a library that parses mail.
        assert set(heavy(modules)) <= ({"email"} if "--version" in arguments else set())
        assert len(ours(modules)) <= GROUP_MODULES_MAX, arguments


def test_there_is_a_row_for_each_command() -> None:
    assert sorted(row.command for row in ROWS) == sorted(name for name, _ in commands_of(waltz))


@pytest.mark.parametrize("row", one_in(4, ROWS), ids=lambda row: row.command)
def test_a_command_imports_what_it_works_with(row: Row, tmp_path: Path) -> None:
    """F-45: 0.25 s of processor time until it connects; but for servers and storage nodes."""
    write_files(tmp_path, our_files((5,), (3,), mark=2))
    modules = imported_by(*row.command.split(), *row.arguments.format(storage=tmp_path).split())
    assert heavy(modules) == row.heavy
    assert len(ours(modules)) <= row.modules


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
