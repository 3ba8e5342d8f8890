"""One segment judged: what is proved durable, and what is said of everything else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.storage.inspected import (
    KEY,
    ROOT,
    cut,
    disk_of,
    flipped,
    our_files,
    pairs,
    put,
    segment_name,
    without,
)
from waltz.limits import DATA_BYTES_MAX
from waltz.record import NewRecord, RecordBatch, batch_from_block, pack_records
from waltz.storage.inspection.findings import FindingKind, Report
from waltz.storage.inspection.judged_segments import (
    Expectation,
    SegmentCheck,
    header_problems,
    partitions_by_request,
    proved_next,
    stretches,
)
from waltz.storage.inspection.survey import list_partition
from waltz.storage.inspection.walk import open_view
from waltz.types import NOTHING, PartitionId, TransactionId

SEG = segment_name(0, 0)
IDX = segment_name(0, 0, ".idx")
FILES = our_files((9,), size=60)
FIRST = TransactionId(0)
ZERO = PartitionId(0)


def expectation(
    *, following: int | None = None, mark: int = NOTHING, proof: bool = False
) -> Expectation:
    after = None if following is None else TransactionId(following)
    return Expectation(KEY, ZERO, after, TransactionId(mark + 1), proof)


def check(files: dict[str, bytes], expected: Expectation) -> Report:
    disk = disk_of(files)
    found = list_partition(disk, f"{ROOT}/0")
    with open_view(disk, f"{ROOT}/{SEG}", f"{ROOT}/{IDX}", FIRST) as view:
        done: list[int] = []
        segment = SegmentCheck(found, view, expected, data_checksums=True, progress=done.append)
        return segment.run()


def proved(files: dict[str, bytes], expected: Expectation) -> int:
    with open_view(disk_of(files), f"{ROOT}/{SEG}", f"{ROOT}/{IDX}", FIRST) as view:
        return proved_next(view, expected)


def test_what_is_proved_durable() -> None:
    """By the next segment, by the mark, by our index; by the original's index only thousands."""
    assert proved(FILES, expectation()) == 0
    assert proved(FILES, expectation(mark=4)) == 5
    assert proved(FILES, expectation(mark=4, proof=True)) == 9
    assert proved(FILES, expectation(following=12)) == 12
    holes = put(FILES, IDX, 128 + 8 * 6, bytes(24))
    assert proved(holes, expectation(proof=True)) == 9, "a hole was written, too"
    hit = put(FILES, IDX, 0, b"\xff" * 60)
    assert proved(hit, expectation(proof=True)) == 9, "its size is left"
    foreign = put(FILES, IDX, 12, bytes(16))
    assert proved(foreign, expectation(proof=True)) == 9, "a header alone may have been hit"
    assert proved(foreign, expectation()) == 0, "it is another cluster's"
    (pair,) = pairs(0, (2345,))
    seg, idx = pair.to_bytes()
    assert proved({SEG: seg, IDX: idx}, expectation()) == 2000
    assert proved({SEG: seg, IDX: idx[: 128 + 8 * 1000]}, expectation()) == 0
    assert proved({SEG: seg, IDX: idx[: 128 + 8 * 1001]}, expectation()) == 1000


@pytest.mark.parametrize("proof", [False, True])
def test_the_same_bad_record_is_damage_or_a_torn_tail(proof: bool) -> None:
    """SD-16, SD-17."""
    report = check(flipped(FILES, SEG, 128 + 650), expectation(mark=2, proof=proof))
    assert (FindingKind.DAMAGE in report.counts, FindingKind.TORN_TAIL in report.counts) == (
        proof,
        not proof,
    )
    assert report.is_damaged is proof


def test_beyond_what_is_proved_nothing_more_is_looked_at() -> None:
    """The node cuts there, whatever follows."""
    report = check(flipped(FILES, SEG, 128 + 650), expectation(mark=2))
    assert (report.records, dict(report.counts)) == (6, {FindingKind.TORN_TAIL: 2})
    texts = [finding.text for finding in report.findings]
    assert texts[0].startswith("300 bytes from transaction 6 on: CRC-32")
    assert texts[1] == "entries for records that are not there"


def test_a_complete_segment_ends_where_the_next_one_begins() -> None:
    assert check(FILES, expectation(following=9)).findings == []
    longer = check({**FILES, SEG: FILES[SEG] + b"x"}, expectation(following=9))
    assert dict(longer.counts) == {FindingKind.DAMAGE: 1}
    too_many = check(FILES, expectation(following=7))
    assert (dict(too_many.counts), too_many.findings[0].first) == ({FindingKind.DAMAGE: 1}, 7)
    too_few = check(FILES, expectation(following=11))
    assert (too_few.records_failed, too_few.records) == (2, 11)


def test_a_record_beyond_our_bound_is_no_torn_tail() -> None:
    """Another release may have been asked to keep it."""
    head = (9).to_bytes(8, "big") + bytes(20) + (DATA_BYTES_MAX + 1).to_bytes(4, "big")
    large = {**FILES, SEG: FILES[SEG] + head + bytes(DATA_BYTES_MAX + 100)}
    report = check(large, expectation(proof=True))
    assert (report.findings[0].kind, report.findings[0].first) == (FindingKind.DAMAGE, 9)


def test_entries_beyond_the_data_are_zeros_or_promises() -> None:
    """An entry of our index proves its record; the original writes the entry first."""
    zeros = {**FILES, IDX: FILES[IDX] + bytes(16)}
    assert dict(check(zeros, expectation(proof=True)).counts) == {FindingKind.DAMAGE: 1}
    assert dict(check(zeros, expectation()).counts) == {FindingKind.TORN_TAIL: 1}
    more = {**FILES, IDX: FILES[IDX] + (1028).to_bytes(8, "big")}
    assert dict(check(more, expectation()).counts) == {FindingKind.TORN_TAIL: 1}
    assert dict(check(more, expectation(proof=True)).counts) == {FindingKind.DAMAGE: 1}


def test_an_index_without_header_can_be_made_anew() -> None:
    for header in (b"", FILES[IDX][:127]):
        report = check({**FILES, IDX: header}, expectation(mark=8))
        assert FindingKind.INDEX in report.counts
        assert report.records_failed == 0
    zeros = put(FILES, IDX, 0, bytes(128))
    assert dict(check(zeros, expectation(mark=8)).counts) == {FindingKind.INDEX: 1}


def test_without_both_files_there_is_nothing_to_say() -> None:
    files = {**without(FILES, SEG, IDX), "0/notes.txt": b""}
    assert check(files, expectation()).findings == []


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda header: header[:127], "header of 127 bytes"),
        (lambda header: bytes(128), "a header of zeros"),
        (lambda header: b"\0\0\0\1" + header[4:], "format version 1"),
        (lambda header: header[:12] + bytes(16) + header[28:], "cluster key 00000000"),
        (lambda header: header[:31] + b"\7" + header[32:], "partition 7; expected 0"),
        (lambda header: header[:39] + b"\7" + header[40:], "first transaction 7; expected 0"),
        (lambda header: header[:127] + b"\7", "reserved bytes"),
    ],
)
def test_a_header_is_judged_field_by_field(damage: Callable[[bytes], bytes], text: str) -> None:
    header = FILES[SEG][:128]
    assert list(header_problems(header, FIRST, expectation())) == []
    (problem,) = header_problems(damage(header), FIRST, expectation())
    assert problem.startswith(text)


def test_what_nobody_can_say_is_not_asked_for() -> None:
    header = FILES[SEG][:12] + bytes(16) + b"\0\0\0\5" + FILES[SEG][32:128]
    assert list(header_problems(header, FIRST, Expectation())) == []


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ([], []),
        ([0, 0], []),
        ([1], [(0, 1)]),
        ([0, 1, 1, 0, 1], [(1, 3), (4, 5)]),
        ([1, 1, 0], [(0, 2)]),
    ],
)
def test_flags_are_told_by_their_stretches(flags: list[int], found: list[tuple[int, int]]) -> None:
    assert list(stretches(np.array(flags, np.bool_))) == found


def batch() -> RecordBatch:
    return batch_from_block(FILES[SEG][128:], FIRST)


def test_columns_of_a_batch_are_compared_at_once() -> None:
    assert partitions_by_request(batch()).tolist() == [0] * 9
    assert not batch().wrong_data().any()
    new = [NewRecord(bytes(8) + b"\xff\xff\xff\xfe" + bytes(4), 0, b"data", 1)]
    strange = pack_records(FIRST, new)
    assert partitions_by_request(strange).tolist() == [-2]
    assert strange.wrong_data().tolist() == [True]


def test_bytes_done_are_told() -> None:
    disk = disk_of(FILES)
    done: list[int] = []
    with open_view(disk, f"{ROOT}/{SEG}", f"{ROOT}/{IDX}", FIRST) as view:
        SegmentCheck(
            list_partition(disk, f"{ROOT}/0"),
            view,
            expectation(),
            data_checksums=False,
            progress=done.append,
        ).run()
    assert sum(done) == len(FILES[SEG]) - 128
    assert cut(FILES, SEG, 5)[SEG] == FILES[SEG][:5]


def test_a_record_behind_a_lost_end_is_told() -> None:
    """Its entry is gone with a power cut; the node does not vote then."""
    place = int.from_bytes(FILES[IDX][128 + 8 * 7 : 128 + 8 * 8])
    lost = cut(put(FILES, SEG, place + 28, b"\1"), IDX, 128 + 8 * 8)
    (found,) = (each for each in check(lost, expectation(proof=True)).findings if each.first == 7)
    assert found.kind is FindingKind.DAMAGE
    assert found.text.endswith("; behind it lies a record from 8 on, which the index does not know")
    (found,) = (
        each
        for each in check(cut(lost, SEG, place + 100), expectation(proof=True)).findings
        if each.first == 7
    )
    assert "behind" not in found.text


def test_without_an_index_no_tail_is_called_torn() -> None:
    torn = cut(FILES, SEG, len(FILES[SEG]) - 1)
    for files in (without(torn, IDX), cut(torn, IDX, 0), cut(torn, IDX, 100)):
        counts = check(files, expectation(proof=True)).counts
        assert (counts[FindingKind.DAMAGE], counts[FindingKind.TORN_TAIL]) == (1, 0)
    counts = check(cut(torn, IDX, 128), expectation(proof=True)).counts
    assert (counts[FindingKind.DAMAGE], counts[FindingKind.TORN_TAIL]) == (0, 1)
