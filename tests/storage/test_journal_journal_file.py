"""The file of a journal: golden bytes, what is recognized, what is continued."""

from __future__ import annotations

from uuid import UUID
from zlib import crc32

import pytest

from tests.storage.support import DIRECTORY, DIRECTORY_ID, OTHER_KEY, fresh_disk, home, t
from waltz.errors import CorruptionError
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.journal.journal_file import (
    JOURNAL_HEADER_BYTES,
    JournalFile,
    JournalPlace,
    read_journal,
)
from waltz.wire.journal_entries import DurableTime, JournalEntry, JournalOpened, LogCut

PATH = f"{DIRECTORY}/0/0000000000000000042.jnl"

GOLDEN = bytes.fromhex(
    "574a4e4c 00000000 0000018bcfe56800 00112233445566778899aabbccddeeff"
    "d1d1d1d1000040008000000000000001 00000000 000000000000002a 4c2cad59"
    "020010 0000000000000029 0000018bcfe56800 bae35da1"
)  # fmt: skip
"""A journal of segment 42 with one entry: the log was opened with record 41 as its last one."""


def make_disk(content: bytes | None = None) -> SimulatedDisk:
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    if content is not None:
        file = disk.open(PATH, create=True)
        file.write_at(0, content)
    return disk


def place(
    disk: SimulatedDisk, *, bytes_max: int = 10_000, directory_id: UUID = DIRECTORY_ID
) -> JournalPlace:
    return JournalPlace(home(disk), directory_id, bytes_max)


def entries_on(disk: SimulatedDisk, place_: JournalPlace | None = None) -> list[JournalEntry]:
    found = read_journal(place_ or place(disk), t(42))
    return [] if found is None else [*found.entries]


def at(last: int) -> DurableTime:
    return DurableTime(t(last), last, 7)


OPENED = JournalOpened(t(41), 1_700_000_000_000)


def test_a_journal_has_these_bytes() -> None:
    disk = make_disk()
    JournalFile(place(disk), t(42), 1_700_000_000_000).append([OPENED])
    assert disk.content(PATH).hex() == GOLDEN.hex()
    assert entries_on(disk) == [OPENED]


def test_a_journal_is_continued_where_it_ends() -> None:
    disk = make_disk()
    file = JournalFile(place(disk), t(42), 5)
    assert file.is_new
    file.append([at(42)])
    file.append([at(43), at(44)])
    again = JournalFile(place(disk), t(42), 6)
    assert not again.is_new
    assert again.entries == [at(42), at(43), at(44)]
    again.append([at(45)])
    assert entries_on(disk) == [at(42), at(43), at(44), at(45)]


@pytest.mark.parametrize("kept", range(JOURNAL_HEADER_BYTES, len(GOLDEN)))
def test_what_is_cut_short_is_cut_off_before_the_journal_is_continued(kept: int) -> None:
    disk = make_disk(GOLDEN[:kept] + b"rest")
    file = JournalFile(place(disk), t(42), 5)
    assert not file.is_new
    file.append([at(42)])
    assert entries_on(disk) == [at(42)]
    assert len(disk.content(PATH)) == JOURNAL_HEADER_BYTES + 27


@pytest.mark.parametrize("kept", range(JOURNAL_HEADER_BYTES))
def test_a_file_without_a_whole_header_is_made_anew(kept: int) -> None:
    disk = make_disk(GOLDEN[:kept])
    assert read_journal(place(disk), t(42)) is None
    JournalFile(place(disk), t(42), 5).append([at(42)])
    assert entries_on(disk) == [at(42)]


def test_a_journal_of_another_cluster_directory_partition_or_segment_is_not_read() -> None:
    disk = make_disk(GOLDEN)
    other = UUID(int=5)
    assert read_journal(place(disk, directory_id=other), t(42)) is None
    assert read_journal(JournalPlace(home(disk, key=OTHER_KEY), DIRECTORY_ID, 999), t(42)) is None
    disk.rename(PATH, PATH.replace("42", "43"))
    assert read_journal(place(disk), t(43)) is None
    for position in range(JOURNAL_HEADER_BYTES):
        flipped = bytearray(GOLDEN)
        flipped[position] ^= 1
        assert read_journal(place(make_disk(bytes(flipped))), t(42)) is None


def test_the_journal_of_a_later_release_is_left_alone() -> None:
    later = JournalPlace(home(make_disk()), DIRECTORY_ID, 999).header(t(42), 5)
    fields = later[:4] + (1).to_bytes(4) + later[8:-4]
    disk = make_disk(fields + crc32(fields).to_bytes(4) + b"entries")
    before = disk.content(PATH)
    with pytest.raises(CorruptionError, match="format version 1; this release knows 0"):
        JournalFile(place(disk), t(42), 5)
    assert disk.content(PATH) == before


def test_a_full_journal_is_thinned_and_replaced_in_one_step() -> None:
    disk = make_disk()
    where = place(disk, bytes_max=1_000)
    file = JournalFile(where, t(42), 5)
    times = [at(number)._replace(milliseconds=1_000 * number) for number in range(42, 442)]
    for each in times:
        file.append([each])
        assert len(disk.content(PATH)) <= 1_000
    found = entries_on(disk, where)
    assert found == [each for each in times if each in found], "each once, in order"
    assert (found[0], found[-1]) == (times[0], times[-1])
    assert len(found) > 10
    assert disk.list_directory(f"{DIRECTORY}/0") == [PATH.rpartition("/")[2]]


def test_a_full_journal_that_has_lost_entries_is_not_continued() -> None:
    disk = make_disk()
    file = JournalFile(place(disk, bytes_max=1_000), t(42), 5)
    file.append([LogCut(t(number), 1) for number in range(30)])
    disk.damage(PATH, 100, b"\xff\xff")
    with pytest.raises(CorruptionError, match="has lost entries"):
        file.append([LogCut(t(number), 1) for number in range(30)])


def test_a_left_over_temporary_file_is_replaced() -> None:
    disk = make_disk()
    disk.open(f"{PATH}.new", create=True).write_at(0, b"x" * 500)
    JournalFile(place(disk), t(42), 5).append([at(42)])
    assert entries_on(disk) == [at(42)]
