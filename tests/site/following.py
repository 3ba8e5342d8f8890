"""Follows docs/start.md as a reader would: its commands, its file, and what it says they print."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tests.clusters import ROOT, RunningCluster, wait_until

PAGE: Final = (ROOT / "docs" / "start.md").read_text()
SECONDS_MAX: Final = 240

UP: Final = "waltz up"
INSTALL: Final = (
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install '.[sql]'",
)
"""The commands of the page that make the environment in which the others run."""


class Step(NamedTuple):
    """A command of the page, and what it prints; None: the page does not say."""

    command: str
    says: str | None


def steps() -> Iterator[Step]:
    """Yield the commands of the page in their order."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for command, said in re.findall(r"^\$ (.*)\n((?:[^$\n].*\n)*)", block, re.MULTILINE):
            yield Step(command, said or None)


def files() -> dict[str, str]:
    """Return the files of the page by their names."""
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


def up(directory: Path, environment: Mapping[str, str]) -> RunningCluster:
    """Start `waltz up` as the page does, on free ports, and return once it is ready."""
    process = subprocess.Popen(
        ["waltz", "up", "--port", "0", "--no-console", "--end-with-stdin"],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    cluster = RunningCluster(process, directory / "waltz-data")

    def is_ready() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return (cluster.directory / "cluster.json").exists() and bool(cluster.state["ready"])

    wait_until(is_ready, "waltz up is not ready")
    return cluster


def write_files(directory: Path, cluster: RunningCluster) -> None:
    """Write the files of the page, with the address of this cluster in place of the page's."""
    for name, text in files().items():
        (directory / name).write_text(text.replace("127.0.0.1:7100", cluster.coordinator))


def run(command: str, directory: Path, environment: Mapping[str, str]) -> str:
    """Return what a command prints. Raises AssertionError: it failed, or said something besides."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def follow(directory: Path, environment: Mapping[str, str]) -> list[Step]:
    """Run every command of the page in `directory`, in order, and return what each has printed.

    `environment` is that which the commands of `INSTALL` have made. Each further `waltz up` stops
    the one before, as the page has its reader do.
    """
    went: list[Step] = []
    with ExitStack() as running:
        for command, _ in steps():
            if command == UP:
                running.close()
                cluster = up(directory, environment)
                running.callback(cluster.stop)
                write_files(directory, cluster)
            ours = command == UP or command in INSTALL
            went.append(Step(command, None if ours else run(command, directory, environment)))
    return went


def with_programs(scripts: Path) -> dict[str, str]:
    """Return the environment whose `waltz` and `python` are those of the folder `scripts`."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": os.pathsep.join((str(scripts), os.environ["PATH"])),
    }
