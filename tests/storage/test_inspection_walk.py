"""The records of a data file and the gaps between those that check out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.storage.inspected import (
    ROOT,
    cut,
    disk_of,
    flipped,
    our_files,
    put,
    segment_name,
    without,
)
from waltz.record import NewRecord, pack_records
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.inspection.walk import Gap, Run, Snapshot, describe, open_view, read_run, walk
from waltz.types import TransactionId

SEG = segment_name(0, 0)
IDX = segment_name(0, 0, ".idx")
FILES = our_files((9,), size=60)
FIRST = TransactionId(0)


def parts(disk: SimulatedDisk) -> Iterator[Run | Gap]:
    with open_view(disk, f"{ROOT}/{SEG}", f"{ROOT}/{IDX}", FIRST) as view:
        yield from walk(view)


def shape(files: dict[str, bytes]) -> list[tuple[int, int | None]]:
    """Each part as its first ID and the one after it; those of gaps are negative."""
    return [
        (part.batch.first_transaction_id, part.batch.next_transaction_id)
        if isinstance(part, Run)
        else (-part.first, part.next_transaction_id)
        for part in parts(disk_of(files))
    ]


def test_sound_records_are_one_run() -> None:
    assert shape(FILES) == [(0, 9)]
    assert shape(cut(FILES, SEG, 128)) == []
    assert shape(without(FILES, IDX)) == [(0, 9)]


@pytest.mark.parametrize("number", [1, 4, 7])
def test_the_index_leads_around_a_bad_record(number: int) -> None:
    files = flipped(FILES, SEG, 128 + 100 * number + 50)
    assert shape(files) == [(0, number), (-number, number + 1), (number + 1, 9)]


def test_the_index_leads_around_many() -> None:
    files = put(FILES, SEG, 128 + 100 * 2 + 30, bytes(380))
    assert shape(files) == [(0, 2), (-2, 7), (7, 9)]
    wrong_index = put(files, IDX, 128 + 8 * 7, bytes(8))
    assert shape(wrong_index) == [(0, 2), (-2, 8), (8, 9)]


def test_nothing_leads_on_where_the_index_does_not() -> None:
    files = flipped(without(FILES, IDX), SEG, 128 + 350)
    assert shape(files) == [(0, 3), (-3, None)]
    assert shape(cut(FILES, SEG, 128 + 399)) == [(0, 3), (-3, None)]


def test_a_record_larger_than_a_window_is_read_whole() -> None:
    data = bytes(5 * 1024 * 1024)
    new = [NewRecord(bytes(16), 0, each, 0) for each in (b"a", data, b"b")]
    batch = pack_records(FIRST, new)
    disk = disk_of(put(FILES, SEG, 128, batch.block) | {SEG: FILES[SEG][:128] + batch.block})
    runs = [part for part in parts(disk) if isinstance(part, Run)]
    assert sum(len(run.batch) for run in runs) == 3
    assert b"".join(run.batch.block for run in runs) == batch.block


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda content: content[:150], "22 bytes are left"),
        (lambda content: content[:200], "a record of 100 bytes of which 72 are here"),
        (lambda content: content[:128] + bytes(7) + b"\5" + content[136:], "transaction ID 5"),
        (lambda content: content[:156] + b"\xff" + content[157:], "data length -"),
        (lambda content: content[:156] + b"\x7f" + content[157:], "expected 0 to 16777216"),
        (lambda content: content[:170] + b"?" + content[171:], "of its bytes"),
    ],
)
def test_it_says_what_is_wrong(damage: Callable[[bytes], bytes], text: str) -> None:
    disk = disk_of({**FILES, SEG: damage(FILES[SEG])})
    with open_view(disk, f"{ROOT}/{SEG}", f"{ROOT}/{IDX}", FIRST) as view:
        assert read_run(view.data, FIRST, 128) is None
        assert text in describe(view.data, FIRST, 128)


def test_what_cannot_be_read_is_a_gap() -> None:
    def fault(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.READ and path.endswith(".seg"):
            raise OSError(5, "Input/output error", path)

    disk = disk_of(FILES)
    disk.fault = fault
    (gap,) = parts(disk)
    assert isinstance(gap, Gap)
    assert gap.reason == "cannot be read: Input/output error"


def test_a_file_that_shrinks_meanwhile_reads_as_zeros() -> None:
    disk = disk_of(FILES)
    snapshot = Snapshot(disk.open_to_read(f"{ROOT}/{SEG}"))
    disk.open(f"{ROOT}/{SEG}").truncate(130)
    assert snapshot.size() == len(FILES[SEG])
    assert snapshot.read_at(128, 8) == FILES[SEG][128:130] + bytes(6)
    assert snapshot.read_at(len(FILES[SEG]) - 4, 100) == bytes(4)
    assert snapshot.read_at(len(FILES[SEG]) + 4, 100) == b""


def test_a_snapshot_changes_nothing() -> None:
    snapshot = Snapshot(disk_of(FILES).open_to_read(f"{ROOT}/{SEG}"))
    changes: list[Callable[[], None]] = [
        lambda: snapshot.write_at(0, b"x"),
        lambda: snapshot.truncate(0),
        lambda: snapshot.preallocate(1),
        lambda: snapshot.sync(),
    ]
    for change in changes:
        with pytest.raises(AssertionError):
            change()


def test_what_is_missing_reads_as_empty() -> None:
    with open_view(disk_of({}), "/a", "/b", FIRST) as view:
        assert (view.has_data, view.has_index, list(walk(view))) == (False, False, [])
        assert len(view.entries(0, 5)) == 0
