"""Records that a damaged object still has. `tests/attest/test_tampering.py` changes every byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archives import add, batch, directory_target
from waltz.archive.archive import Archive
from waltz.archive.archive_target import Target
from waltz.archive.salvage import header_fault, salvaged_records

COUNT = 3000


@pytest.fixture
def made(tmp_path: Path) -> tuple[Target, Archive, Path]:
    target = directory_target(tmp_path)
    archive = add(target, {0: [(0, 100), (100, COUNT)]}, size=900)
    return target, archive, tmp_path


def change(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(data)


def test_all_records_of_a_sound_object_are_read(made: tuple[Target, Archive, Path]) -> None:
    target, archive, _ = made
    for file in archive.partitions[0].files:  # type: ignore[index]
        found = list(salvaged_records(target, file))
        assert b"".join(found) == batch(file.first, file.end - file.first, size=900).block
        assert header_fault(target, archive, file) is None


def test_records_before_the_damage_are_those_that_were_archived(
    made: tuple[Target, Archive, Path],
) -> None:
    target, archive, directory = made
    file = archive.partitions[0].files[1]  # type: ignore[index]
    change(directory / file.path, file.footer_offset * 2 // 3)
    found = list(salvaged_records(target, file))
    expected = batch(100, COUNT - 100, size=900)
    sound = 0
    while sound < len(found) and found[sound] == bytes(
        expected.block[expected.offsets[sound] : expected.offsets[sound + 1]]
    ):
        sound += 1
    assert 500 < sound < COUNT - 100


def test_nothing_is_left_of_an_object_that_is_lost(made: tuple[Target, Archive, Path]) -> None:
    target, archive, directory = made
    file = archive.partitions[0].files[0]  # type: ignore[index]
    (directory / file.path).unlink()
    assert list(salvaged_records(target, file)) == []


def test_a_changed_header_is_told(made: tuple[Target, Archive, Path]) -> None:
    target, archive, directory = made
    file = archive.partitions[0].files[0]  # type: ignore[index]
    change(directory / file.path, 60)
    assert "the first 64 bytes" in str(header_fault(target, archive, file))
