"""A run of processes under faults, short enough for every day; and what it leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

SECONDS_MAX = 280.0


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.smoke", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# The seed of the first run strikes one server twice and a storage node within three seconds.
@pytest.mark.parametrize(
    ("transactions", "seconds", "seed"),
    [("8000", "16", "35401"), pytest.param("50000", "40", "1", marks=pytest.mark.long)],
)
def test_nothing_is_lost_and_nothing_doubled_while_processes_die(
    tmp_path: Path, transactions: str, seconds: str, seed: str
) -> None:
    """DM-05, DM-06: three servers, three storage nodes, a ZooKeeper, four clients."""
    path = tmp_path / "result.json"
    run = start(
        *("--transactions", transactions, "--seconds", seconds, "--seed", seed),
        *("--json", str(path), "--directory", str(tmp_path / "run")),
    )
    said, _ = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == 0, said
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["violations"] == []
    assert result["committed"] > 0
    assert result["fault_count"] > 0
    assert sum(result["verdicts"].values()) == result["submitted"]
    assert result["in_the_log"] >= result["committed"]
    assert "server-" in said
    assert f"{result['committed']:,} committed" in said


@pytest.mark.long
def test_a_client_that_does_not_apply_one_transaction_makes_the_run_fail(tmp_path: Path) -> None:
    """DM-07: the original's sanity check passes whatever its clients do."""
    path = tmp_path / "result.json"
    run = start(
        *("--transactions", "1000", "--calm", "--forgetful"),
        *("--json", str(path), "--directory", str(tmp_path / "run")),
    )
    said, _ = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == 1, said
    violations = json.loads(path.read_text())["violations"]
    assert any(each.startswith("incomplete: client-1 was handed") for each in violations)
    assert any(each.startswith("checksum: client-1 has") for each in violations)
    assert not any("client-2" in each for each in violations)
    assert "VIOLATION" in said


def processes_of(directory: Path) -> list[str]:
    """Those whose command line names the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:  # it has ended
            continue
        if str(directory).encode() in command:
            found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.mark.long
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = start("--transactions", "1000000", "--directory", str(directory))
    assert run.stdout is not None
    for line in run.stdout:
        if " is back" in line:
            break
    assert processes_of(directory)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == 130, said
    deadline = time.monotonic() + SECONDS_MAX
    while (left := processes_of(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
