"""`waltz disk inspect`, `control-file` and `verify` (TL-01, TL-70, TL-73, TL-74)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.disk_commands import run_disk
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
