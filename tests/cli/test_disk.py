"""`waltz disk inspect`, `control-file` and `verify` (TL-01, TL-70, TL-73, TL-74)."""

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
    DIRECTORY_ID,
    KEY,
    cut,
    flipped,
    our_files,
    put,
    segment_name,
    storage_directory,
    their_files,
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


# inspect


def test_a_directory_is_shown_with_its_partitions(directory: Path) -> None:
    shown = run_disk("inspect", directory)
    assert shown.exit_code == 0
    for text in (str(KEY), str(DIRECTORY_ID), "2 in the cluster", "read, write"):
        assert text in shown.stdout
    row = next(line.split() for line in shown.stdout.splitlines() if line.strip().startswith("0 "))
    assert row[:5] == ["0", "4", "9", "2", "2"]
    assert row[7:10] == ["3", "0", "15"]


def test_numbers_are_exact_in_json(directory: Path) -> None:
    found = parsed(run_disk("inspect", directory, "--json"))
    assert (found["cluster_key"], found["directory_id"]) == (str(KEY), str(DIRECTORY_ID))
    partition = found["partitions"][0]
    assert partition["bytes"] == sum(
        len(content) for path, content in FILES.items() if path.startswith("0/")
    )
    assert (partition["first_transaction_id"], partition["last_transaction_id"]) == (0, 15)
    assert [segment["first"] for segment in partition["segments"]] == [0, 5, 12]
    assert (partition["session_id"], partition["fence"]) == (4, 9)


def test_partitions_that_are_not_assigned_are_shown_on_request(tmp_path: Path) -> None:
    directory = write_files(tmp_path, storage_directory((3,), (2,), flags=1).to_files())
    assert parsed(run_disk("inspect", directory, "--json"))["partitions"] == []
    shown = parsed(run_disk("inspect", directory, "--json", "--all"))["partitions"]
    assert [partition["assigned"] for partition in shown] == [False, False]
    assert "not assigned" in run_disk("inspect", directory, "--all").stdout


def test_what_the_original_wrote_is_shown() -> None:
    found = run_disk("inspect", GOLDEN)
    assert found.exit_code == 0
    assert "none: written by the original alone" in found.stdout
    assert [
        p["last_transaction_id"]
        for p in parsed(run_disk("inspect", GOLDEN, "--json"))["partitions"]
    ] == [14, 254]


def test_a_damaged_promise_is_shown_and_ends_with_one(directory: Path) -> None:
    write_files(directory, put(FILES, "waltz-storage.ctl", 128 + 40, b"xx"))
    shown = run_disk("inspect", directory)
    assert shown.exit_code == 1
    assert "damaged promise: " in shown.stdout


def test_a_partition_that_nothing_is_known_of_is_shown_as_damaged(tmp_path: Path) -> None:
    files = put(their_files((5,), mark=2), "waltz-storage.ctl", 128 + 4, bytes(72))
    shown = run_disk("inspect", write_files(tmp_path, files))
    assert (shown.exit_code, "damaged " in shown.stdout) == (1, True)


# control-file


@pytest.mark.parametrize("path", ["", "waltz-storage.ctl"])
def test_the_control_file_is_shown_by_directory_or_file(directory: Path, path: str) -> None:
    """TL-73."""
    shown = run_disk("control-file", directory / path)
    assert shown.exit_code == 0
    assert len([line for line in shown.stdout.splitlines() if "current" in line]) == 2


def test_one_partition_or_the_assigned_ones_are_shown(tmp_path: Path) -> None:
    """TL-73: --assigned is a flag."""
    directory = write_files(tmp_path, FILES)
    both = parsed(run_disk("control-file", directory, "--json"))
    assert [entry["partition_id"] for entry in both["partitions"]] == [0, 1]
    one = parsed(run_disk("control-file", directory, "--json", "--partition", "1"))
    assert [entry["partition_id"] for entry in one["partitions"]] == [1]
    assert one["partitions"][0]["current_struct"] == 2
    assert one["partitions"][0]["structs"][1] == {
        "session_id": 4,
        "low_water_mark": 2,
        "local_low_water_mark": 2,
        "flags": 5,
        "assigned": True,
        "readable": True,
        "writable": True,
        "sequence_number": 7,
    }
    assigned = parsed(run_disk("control-file", directory, "--json", "--assigned"))
    assert len(assigned["partitions"]) == 2
    write_files(directory, storage_directory((3,), (2,), flags=1).to_files())
    none = parsed(run_disk("control-file", directory, "--json", "--assigned"))
    assert none["partitions"] == []


def test_partition_and_assigned_exclude_each_other(directory: Path) -> None:
    """TL-73."""
    refused = run_disk("control-file", directory, "--partition", "0", "--assigned")
    assert (refused.exit_code, "exclude each other" in refused.output) == (2, True)


def test_a_partition_out_of_range_is_refused_with_the_range(directory: Path) -> None:
    """TL-73."""
    refused = run_disk("control-file", directory, "--partition", "2")
    assert (refused.exit_code, "partitions 0 to 1" in refused.output) == (2, True)


def test_a_struct_that_fails_its_checksum_is_shown(directory: Path) -> None:
    """SD-05."""
    write_files(directory, flipped(FILES, "waltz-storage.ctl", 128 + 41))
    shown = run_disk("control-file", directory)
    assert shown.exit_code == 1
    assert "checksum fails" in shown.stdout
    assert (
        parsed(run_disk("control-file", directory, "--json"))["partitions"][0]["structs"][1] is None
    )


# verify


def test_a_sound_directory_ends_with_zero(directory: Path) -> None:
    """TL-70."""
    shown = run_disk("verify", directory, "--data-checksums")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "0 of 21 records failed",
        "0 of 21 index entries failed",
        f"no damage: 10 files, {shown.stdout.rpartition(', ')[2].strip()}",
    ]


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (flipped(FILES, SEG, 128 + 40), "damage"),
        (flipped(FILES, SEG, 127), "header"),
        (without(FILES, segment_name(0, 5, ".idx")), "index wrong"),
        (put(FILES, "waltz-storage.ctl", 130, b"xx"), "damaged promise"),
    ],
)
def test_damage_is_named_by_its_kind_and_ends_with_one(
    tmp_path: Path, files: Files, kind: str
) -> None:
    """TL-70."""
    directory = write_files(tmp_path, files)
    shown = run_disk("verify", directory)
    assert shown.exit_code == 1
    assert shown.stdout.startswith(f"{kind}: {directory}")
    found = parsed(run_disk("verify", directory, "--json"))
    assert found["is_damaged"]
    assert found["findings"][0]["kind"] == kind


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({**FILES, segment_name(0, 12): FILES[segment_name(0, 12)] + b"x"}, "torn tail"),
        (cut(FILES, segment_name(0, 12, ".idx"), 140), "index short"),
        ({**FILES, "0/damaged.json.new": b""}, "orphan file"),
        ({**FILES, "notes.txt": b""}, "note"),
    ],
)
def test_what_a_crash_leaves_is_named_and_ends_with_zero(
    tmp_path: Path, files: Files, kind: str
) -> None:
    shown = run_disk("verify", write_files(tmp_path, files))
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"{kind}: ")


def test_at_most_100_failures_are_printed_and_all_are_counted(tmp_path: Path) -> None:
    """TL-70."""
    files = our_files((300,), size=60)
    path = segment_name(0, 0)
    for number in range(0, 300, 2):
        files = flipped(files, path, 128 + 100 * number + 50)
    shown = run_disk("verify", write_files(tmp_path, files))
    lines = shown.stdout.splitlines()
    assert len([line for line in lines if line.startswith("damage: ")]) == 100
    assert "and 50 more" in lines
    assert "150 of 300 records failed" in lines


@pytest.mark.parametrize("path", ["0", segment_name(0, 5), segment_name(0, 5, ".idx")])
def test_a_part_is_verified_alone(directory: Path, path: str) -> None:
    assert run_disk("verify", directory / path).exit_code == 0


def test_one_transaction_is_verified_alone(directory: Path) -> None:
    shown = run_disk("verify", directory / "0", "--transaction", "7")
    assert shown.exit_code == 0
    assert "0 of 1 records failed" in shown.stdout
    missing = run_disk("verify", directory / "0", "--transaction", "16")
    assert (missing.exit_code, "before transaction 16" in missing.output) == (2, True)
    whole = run_disk("verify", directory, "--transaction", "7")
    assert (whole.exit_code, "needs a partition directory" in whole.output) == (2, True)


# All of them

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
