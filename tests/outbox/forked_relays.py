"""A process that starts relays: each is a fork of it, so that it starts in tens of milliseconds.

python -m tests.outbox.forked_relays FILE LOG

Each line of its input is a command: `start` answers with a process ID, `end` ends it. A fork is
a whole process of its own, which runs the command `waltz outbox run FILE`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

LOADED = (
    "waltz.cli.outbox_run",
    "waltz.outbox.relay_shell",
    "waltz.client.client_shell",
    "waltz.opening",
    "uvloop",
    "psycopg",
    "pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
"""Modules that a relay would import; none of them starts a thread."""


def start(file: str, log: str) -> int:
    """Fork a relay; return its process ID."""
    child = os.fork()
    if child:
        return child
    with Path(log).open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    from waltz.cli.commands import waltz

    try:
        waltz(["outbox", "run", file], standalone_mode=False)
    except BaseException as error:
        print(f"relay {os.getpid()} ended with {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def main(file: str, log: str) -> None:
    for name in LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        print(start(file, log), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
