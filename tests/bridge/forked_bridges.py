"""A process that starts bridges: each is a fork of it, so that it starts in tens of milliseconds.

python -m tests.bridge.forked_bridges http|kafka FILE LOG

Each line of its input starts one, and is answered with a process ID. A fork is a whole process of
its own, which runs the command `waltz bridge http FILE`, or `kafka`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

LOADED = {
    "http": ("waltz.cli.bridge_http", "waltz.bridge.webhook_destination_shell"),
    "kafka": ("waltz.cli.bridge_kafka", "waltz.bridge.kafka_destination_shell"),
}
LOADED_BY_BOTH = (
    "waltz.bridge.bridge_shell",
    "waltz.reader.reader_shell",
    "waltz.opening",
    "uvloop",
)
"""Modules that a bridge would import; none of them starts a thread."""


def start(kind: str, file: str, log: str) -> int:
    """Fork a bridge; return its process ID."""
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
        waltz(["bridge", kind, file], standalone_mode=False)
    except BaseException as error:
        print(f"bridge {os.getpid()} ended with {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def main(kind: str, file: str, log: str) -> None:
    for name in (*LOADED[kind], *LOADED_BY_BOTH):
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no bridge stays as a zombie
    for _ in sys.stdin:
        print(start(kind, file, log), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
