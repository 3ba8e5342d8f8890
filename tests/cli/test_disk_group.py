"""All commands of `waltz disk` (TL-01, TL-74)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cli.disk_commands import run_disk
from tests.clusters import RunningCluster, run_waltz
from tests.storage.independent_reader import Files
from tests.storage.inspected import (
    cut,
    flipped,
    our_files,
    put,
    segment_name,
    without,
    write_files,
)
from waltz.cli.commands import waltz

FILES = our_files((5, 7, 4), (3, 2), mark=2)
SEG = segment_name(0, 5)
GOLDEN = Path(__file__).parent.parent / "golden" / "storage-after-clients"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_files(tmp_path / "storage", FILES)


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)


COMMANDS = (
    ("inspect",),
    ("inspect", "--all", "--json"),
    ("control-file",),
    ("verify",),
    ("verify", "--data-checksums", "--json"),
    ("statistic",),
    ("dump", "--metadata", "--records", "--header"),
    ("checksum",),
)


def fingerprint(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path.relative_to(directory)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
            path.stat().st_ctime_ns,
        )
        for path in [directory, *sorted(directory.rglob("*"))]
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "files",
    [
        FILES,
        {**FILES, segment_name(0, 12): FILES[segment_name(0, 12)] + b"torn"},
        flipped(FILES, SEG, 200),
        without(FILES, segment_name(0, 5, ".idx")),
        put(FILES, "waltz-storage.ctl", 150, b"damage"),
        put(FILES, "waltz-storage.node", 150, b"damage"),
    ],
    ids=["sound", "torn", "damaged", "without index", "control file", "node file"],
)
def test_no_command_changes_a_byte(tmp_path: Path, files: Files, command: tuple[str, ...]) -> None:
    """TL-74: the original opens for writing, recovers, and cuts the evidence."""
    directory = write_files(tmp_path, files)
    before = fingerprint(directory)
    for path in directory.rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    run_disk(*command, directory)
    assert fingerprint(directory).keys() == before.keys()
    assert {path: found[:2] for path, found in fingerprint(directory).items()} == {
        path: found[:2] for path, found in before.items()
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_is_nothing_of_a_storage_node_is_refused_with_what_was_expected(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """TL-01."""
    for path in (tmp_path, tmp_path / "nowhere"):
        refused = run_disk(*command, path)
        assert refused.exit_code == 2
        assert str(path) in refused.output
        assert "waltz-storage.ctl" in refused.output or "no such file" in refused.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect",),
        ("nope",),
        ("verify", "--transaction", "-1", "."),
        ("control-file", "--partition", "a", "."),
        ("dump", "--limit", "0", "."),
    ],
)
def test_a_wrong_call_ends_with_two(arguments: tuple[str, ...]) -> None:
    """TL-01."""
    refused = CliRunner().invoke(waltz, ["disk", *arguments])
    assert refused.exit_code == 2
    assert "Usage: " in refused.output


def test_every_command_has_help() -> None:
    """TL-01."""
    shown = CliRunner().invoke(waltz, ["disk", "-h"])
    for command in ("inspect", "control-file", "verify", "statistic", "dump", "checksum"):
        assert f"  {command} " in shown.output
        assert CliRunner().invoke(waltz, ["disk", command, "-h"]).exit_code == 0


def test_errors_are_one_line_and_no_traceback(directory: Path) -> None:
    write_files(directory, cut(FILES, "waltz-storage.ctl", 100))
    done = run_waltz("disk", "inspect", str(directory))
    assert done.returncode == 1
    assert "has 100 bytes; a control file has at least 128" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_waltz("disk", "verify", str(directory / "nowhere"))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_what_cannot_be_read_is_named(directory: Path) -> None:
    """A directory in a file's place: that stops the superuser, too."""
    path = directory / "waltz-storage.ctl"
    path.unlink()
    path.mkdir()
    refused = run_disk("inspect", directory)
    assert refused.exit_code == 2
    assert refused.stderr == f"Error: cannot read {path}: Is a directory\n"


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    """A pipe that nobody writes to, in the place of a data file, makes it wait for ever."""
    directory = write_files(tmp_path, FILES)
    (directory / SEG).unlink()
    os.mkfifo(directory / SEG)
    process = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", "disk", "verify", str(directory)],
        stderr=subprocess.PIPE,
        text=True,
    )
    waits_in = Path(f"/proc/{process.pid}/wchan")
    while waits_in.read_text() != "wait_for_partner":  # the kernel's name for opening a pipe
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said


@pytest.mark.processes
@pytest.mark.long
def test_it_works_beside_a_running_cluster(cluster: RunningCluster) -> None:
    """TL-74: nothing is locked, nothing is disturbed, and an append under way is no damage."""
    directory = cluster.directory / "storage-1"
    lines = "".join(f"transaction {number}\n" for number in range(3_000))
    where = ("--cluster", cluster.coordinator, "--partition", "0")
    done: list[subprocess.CompletedProcess[str]] = []
    writer = threading.Thread(target=lambda: done.append(run_waltz("append", *where, input=lines)))
    writer.start()
    looks = 0
    while writer.is_alive():
        result = run_disk("verify", directory)
        assert result.exit_code == 0, result.output
        result = run_disk("inspect", directory)
        assert result.exit_code == 0, result.output
        looks += 1
    writer.join()
    assert looks > 2
    assert done[0].stdout.count("\n") == 3_000, done[0].stderr
    digests = {
        json.loads(run_disk("checksum", cluster.directory / name, "--json", "--to", "2000").stdout)[
            0
        ]["sha256_to"]
        for name in ("storage-1", "storage-2", "storage-3")
    }
    assert len(digests) == 1
