"""Directories of both releases, parsed by the book and printed anew (SD-01 to SD-13)."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from random import Random

import pytest

from tests.storage.directories import History, Plan, make_history
from tests.storage.independent_reader import (
    OURS_ALONE,
    Files,
    kept_by_the_original,
    parse_directory,
    read_files,
)
from tests.storage.support import GOLDEN, GOLDEN_KEY

GOLDEN_NAMES = ("storage-empty", "storage-partitions-added", "storage-after-clients")

LIFE = Plan(
    "life",
    segment_bytes_threshold=3_000,
    sizes=(0, 300),
    sessions=((None, 12), (3, 30), (9, 1), (1, 40), (0, 2)),
)


def without_ours(files: Files) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if not OURS_ALONE.fullmatch(path)}


def check_round_trip(files: Files) -> None:
    assert parse_directory(files).to_files() == without_ours(files)


def check_the_original_keeps_all(files: Files) -> None:
    directory = parse_directory(files)
    for number, pairs in directory.partitions.items():
        mark = directory.control.entries[number].current.local_low_water_mark
        for pair in pairs:
            name = f"{number}/{pair.first:019d}"
            kept = kept_by_the_original(files[f"{name}.seg"], files[f"{name}.idx"], mark)
            assert kept == pair.first + len(pair.records)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> History:
    return make_history(tmp_path_factory.mktemp("life"), LIFE)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_what_the_original_wrote_is_printed_anew_byte_for_byte(name: str) -> None:
    check_round_trip(read_files(GOLDEN / name))


def test_what_our_node_wrote_is_printed_anew_byte_for_byte(life: History) -> None:
    """SD-01 to SD-04, SD-10, SD-11, SD-13, SD-18, SD-21: roll-overs, truncations, sessions."""
    assert sum(path.endswith(".jnl") for path in life.files) > 6, "journals are among the files"
    check_round_trip(life.files)
    directory = parse_directory(life.files)
    for number in (0, 1):
        pairs = directory.partitions[number]
        assert len(pairs) > 3
        assert all(pair.entry_count == len(pair.records) for pair in pairs)
        assert directory.control.entries[number].current.session == len(LIFE.sessions) - 1


def test_both_files_of_our_segments_have_one_creation_time(life: History) -> None:
    for pairs in parse_directory(life.files).partitions.values():
        assert all(len(set(pair.creation_times)) == 1 for pair in pairs)


def test_the_original_keeps_every_record_of_ours(life: History) -> None:
    """SD-14: by the original's own rule of recovery."""
    check_the_original_keeps_all(life.files)


def test_a_running_node_leaves_what_the_original_can_open_at_any_time(life: History) -> None:
    """What a killed process leaves is at least what was answered."""
    for files in life.earlier:
        parse_directory(files)
        check_the_original_keeps_all(files)


@pytest.mark.parametrize("name", ["storage-partitions-added", "storage-after-clients"])
def test_we_continue_what_the_original_began(name: str, tmp_path: Path) -> None:
    """SD-10, SD-11: its records stay byte for byte, ours follow."""
    shutil.copytree(GOLDEN / name, tmp_path / "storage")
    before = parse_directory(read_files(tmp_path / "storage"))
    plan = Plan(name, 1_500, (0, 200), ((None, 20), (5, 20), (None, 3)), first_session=1)
    history = make_history(tmp_path / "storage", plan, key=GOLDEN_KEY)
    check_round_trip(history.files)
    check_the_original_keeps_all(history.files)
    after = parse_directory(history.files)
    assert after.control.creation_time == before.control.creation_time
    for number in (0, 1):
        records = before.records(number)
        assert after.records(number)[: len(records)] == records
        assert len(after.records(number)) == len(records) + 20 - 5 + 20 + 3


def test_a_single_wrong_byte_is_noticed_by_the_reader_itself(life: History) -> None:
    """It would be of no use if it let things pass: creation times are all that may vary."""
    draw = Random("strict")
    for _ in range(300):
        path = draw.choice(sorted(without_ours(life.files)))
        data = bytearray(life.files[path])
        position = draw.randrange(len(data))
        if 4 <= position < 12:
            continue
        data[position] ^= 1 << draw.randrange(8)
        with pytest.raises((AssertionError, KeyError, struct.error)):
            parse_directory({**life.files, path: bytes(data)})
