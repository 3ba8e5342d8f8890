"""The command line as a whole: exit codes, and how errors are shown."""

from __future__ import annotations

import subprocess
import sys

from tests.clusters import run_waltz


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


def test_it_refuses_to_run_without_its_assertions() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "waltz.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "python -O" in done.stderr
