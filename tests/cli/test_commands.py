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
from waltz.cli.audit_group import PLACES as AUDIT
from waltz.cli.bridge_group import PLACES as BRIDGE
from waltz.cli.certs_group import PLACES as CERTS
from waltz.cli.cluster_group import PLACES as CLUSTER
from waltz.cli.commands import PLACES, waltz
from waltz.cli.disk_group import PLACES as DISK
from waltz.cli.lazy_group import CommandPlace
from waltz.cli.locks_group import PLACES as LOCKS
from waltz.cli.migrate_group import PLACES as MIGRATE
from waltz.cli.outbox_group import PLACES as OUTBOX
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
    Row("up", "--help", 57, LOOP_SHOWN),
    Row("status", AT, 93, LOOP),
    Row("top", AT, 113, LOOP),
    Row("console", "--help", 40, LOOP),
    Row("append", f"{AT} --partition 0 x", 145, LOOP),
    Row("outcome", f"{AT} 1:1:1:1", 145, LOOP),
    Row("tail", f"{AT} --partition 0", 106, LOOP),
    Row("explain", f"{AT} 0:1", 129, LOOP),
    Row("locks top", AT, 94, LOOP),
    Row("locks refusals", f"{AT} --partition 0", 93, LOOP),
    Row("bisect", f"{AT} --partition 0 --test builtins:bool", 113, LOOP),
    Row("doctor", "--help", 27, LOOP),
    Row("server", "--help", 201, RECORDS),
    Row("storage", "--help", 144, RECORDS),
    Row("cluster create", f"{AT} -n a -p 1", 49, LOOP),
    Row("cluster delete", f"{AT} -n a", 49, LOOP),
    Row("cluster show-cluster-key", AT, 49, LOOP),
    Row("cluster status", AT, 94, LOOP),
    Row("cluster list", AT, 53, LOOP),
    Row("cluster add-storage", f"{AT} -s 127.0.0.1:1 -a 2 -g 1", 96, LOOP),
    Row("cluster remove-storage", f"{AT} -s 127.0.0.1:1", 96, LOOP),
    Row("cluster assign", NODE, 96, LOOP),
    Row("cluster unassign", NODE, 96, LOOP),
    Row("cluster exchange", "--help", 96, LOOP),
    Row("cluster auto-assign", "--help", 96, LOOP),
    Row("cluster add-partitions", "--help", 99, LOOP),
    Row("cluster check-connectivity", AT, 99, LOOP),
    Row("cluster verify", AT, 99, LOOP),
    Row("admin server add-preferred-partition", NODE, 88, LOOP),
    Row("admin server remove-preferred-partition", NODE, 88, LOOP),
    Row("admin storage list", AT, 69, LOOP),
    Row("admin storage add-partition", NODE, 99, LOOP),
    Row("admin storage remove-partition", NODE, 99, LOOP),
    Row("admin storage availability", f"{NODE} --online true", 99, LOOP),
    Row("admin storage access", f"{NODE} --reads on --writes on", 99, LOOP),
    Row("admin storage recover-partition", "--help", 70, LOOP_SHOWN),
    Row("admin storage sync-partitions", AT, 69, LOOP),
    Row("admin storage validate", AT, 99, LOOP),
    Row("admin storage max-transaction-id", NODE, 99, LOOP),
    Row("disk inspect", "{storage}", 49, FILES_SHOWN),
    Row("disk control-file", "{storage}", 49, FILES_SHOWN),
    Row("disk verify", "{storage}", 49, FILES),
    Row("disk statistic", "{storage}", 47, FILES_SHOWN),
    Row("disk dump", "--records {storage}/0", 47, FILES),
    Row("disk checksum", "{storage}", 47, FILES_SHOWN),
    Row("archive run", "--help", 22, LOOP),
    Row("archive status", "--help", 22, NOTHING),
    Row("archive cut", "--help", 47, LOOP),
    Row("archive cuts", "--help", 47, LOOP),
    Row("archive verify", "--help", 21, NOTHING),
    Row("archive repair", "--help", 21, NOTHING),
    Row("outbox run", "--help", 30, LOOP),
    Row("outbox ddl", "--help", 26, NOTHING),
    Row("outbox status", "--help", 26, NOTHING),
    Row("outbox parked", "--help", 26, NOTHING),
    Row("outbox retry", "--help", 26, NOTHING),
    Row("outbox drop", "--help", 26, NOTHING),
    Row("bridge http", "--help", 27, LOOP),
    Row("bridge kafka", "--help", 27, LOOP),
    Row("bridge status", "--help", 23, LOOP),
    Row("bridge skip", "--help", 23, LOOP),
    Row("pipeline changes", "--help", 10, NOTHING),
    Row("pipeline init", "--help", 10, NOTHING),
    Row("pipeline rebuild", "--help", 10, NOTHING),
    Row("pipeline report", "--help", 10, NOTHING),
    Row("pipeline run", "--help", 10, NOTHING),
    Row("pipeline status", "--help", 10, NOTHING),
    Row("pipeline tidy", "--help", 10, NOTHING),
    Row("pipeline verify", "--help", 10, NOTHING),
    Row("parked drop", "--help", 15, NOTHING),
    Row("parked list", "--help", 15, NOTHING),
    Row("parked retry", "--help", 15, NOTHING),
    Row("parked show", "--help", 15, NOTHING),
    Row("parked skip", "--help", 15, NOTHING),
    Row("consumers list", AT, 88, LOOP),
    Row("consumers show", f"{AT} orders", 88, LOOP),
    Row("consumers forget", f"{AT} orders --yes", 40, LOOP),
    Row("certs init", "--help", 14, NOTHING),
    Row("certs issue", "--help", 14, NOTHING),
    Row("certs renew", "--help", 14, NOTHING),
    Row("certs show", "--help", 14, NOTHING),
    Row("attest keygen", "--help", 13, NOTHING),
    Row("attest run", "--help", 13, NOTHING),
    Row("attest check", "--help", 41, LOOP),
    Row("prove", "--help", 11, NOTHING),
    Row("policy check", "--help", 23, ("yaml",)),
    Row("policy diff", "--help", 23, ("yaml",)),
    Row("policy who-can", "--help", 23, ("yaml",)),
    Row("policy test", "--help", 23, ("yaml",)),
    Row("policy token", "prometheus", 10, NOTHING),
    Row("policy apply", "--help", 37, LOOP),
    Row("policy show", AT, 39, LOOP),
    Row("audit verify", "--help", 11, NOTHING),
    Row("audit show", "--help", 11, NOTHING),
    Row("completion", "bash", 7, NOTHING),
    Row("migrate check", "--help", 11, NOTHING),
    Row("migrate convert-config", "--help", 42, ("yaml",)),
    Row("migrate convert-tls", "--help", 42, ("yaml",)),
    Row("verify-proof", "--help", 11, NOTHING),
    Row("witness", "--help", 18, LOOP),
    Row("bench", "--help", 42, LOOP),
    Row("restore plan", "--help", 59, FILES),
    Row("restore cluster", "--help", 108, RECORDS),
    Row("restore storage", "--help", 108, RECORDS),
    Row("restore drill", "--help", 106, RECORDS),
    Row("restore partition", "--help", 122, RECORDS),
    Row("clone", "--help", 114, ("asyncio", "numpy", "rich")),
)
"""A row per command. What a command imports to show its answer comes later; those that start
processes, and those that need a whole cluster to connect to, are called with `--help`."""

GROUPS = (
    "admin", "admin server", "admin storage", "archive", "attest", "bridge", "certs", "cluster",
    "disk", "migrate", "outbox", "parked", "pipeline", "restore",
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
    [
        PLACES,
        AUDIT,
        BRIDGE,
        CERTS,
        CLUSTER,
        DISK,
        LOCKS,
        MIGRATE,
        OUTBOX,
        POLICY,
        RESTORE,
        STORAGE_PLACES,
        SERVER_PLACES,
    ],
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
