"""The command line as a whole: exit codes, and how errors are shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.storage_nodes import run_nodes
from tests.clusters import run_waltz
from waltz.cli.lazy_group import NOBODY_READS
from waltz.storage.storage_node_shell import StorageNode


def test_help_names_the_commands() -> None:
    done = run_waltz("--help")
    assert done.returncode == 0
    for command in (
        "up",
        "status",
        "append",
        "tail",
        "server",
        "storage",
        "cluster",
        "admin",
        "disk",
    ):
        assert f"  {command} " in done.stdout


def test_a_wrong_call_ends_with_two() -> None:
    done = run_waltz("append", "--cluster", "nowhere", "--partition", "0", "data")
    assert done.returncode == 2
    assert "'nowhere'; expected host:port" in done.stderr


def test_an_unreachable_cluster_is_one_line_that_names_it() -> None:
    done = run_waltz("status", "--cluster", "127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("disk", "verify", "--json"),
        ("disk", "verify"),
        ("disk", "control-file"),
        ("migrate", "check", "--offline", "--directory"),
    ],
)
def test_an_output_that_nobody_reads_is_no_verdict(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither 0 nor 1: nothing is known to be well, and nothing to be wrong."""

    async def story(_: StorageNode) -> None:
        pass

    run_nodes(tmp_path, 1, story)
    running = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", *arguments, str(tmp_path / "0")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    said = running.stderr.read()
    running.stderr.close()
    assert (running.wait(), said) == (NOBODY_READS, b"")


def test_it_refuses_to_run_without_its_assertions() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "waltz.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "python -O" in done.stderr
