"""A whole directory judged: what is said of each kind of fault (TL-70, TL-74)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.storage.independent_reader import Files, parse_directory
from tests.storage.inspected import (
    ROOT,
    cut,
    disk_of,
    flipped,
    kinds,
    look,
    our_files,
    put,
    segment_name,
    storage_directory,
    their_files,
    without,
)
from waltz.errors import NotFoundError
from waltz.storage.inspection.findings import Finding, FindingKind, Report
from waltz.storage.inspection.survey import find_target
from waltz.storage.inspection.verification import Options, verify, verify_transaction
from waltz.storage.log.damage import DamagedRange, encode_damage
from waltz.types import TransactionId

FILES = our_files((5, 7, 4), (3, 2), mark=2)
SEG = segment_name(0, 12)
IDX = segment_name(0, 12, ".idx")
MIDDLE = segment_name(0, 5)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


def test_a_sound_directory_of_ours_has_no_finding() -> None:
    report = look(FILES, data_checksums=True)
    assert report.findings == []
    assert (report.records, report.records_failed) == (21, 0)
    assert (report.entries, report.entries_failed) == (21, 0)
    assert (report.files, report.bytes) == (
        10,
        sum(len(content) for path, content in FILES.items() if "/" in path),
    )


def test_a_sound_directory_of_the_original_has_notes_only() -> None:
    report = look(their_files((5, 7, 4), (3,)))
    assert kinds(report) == {FindingKind.NOTE: 5}
    assert not report.is_damaged


@pytest.mark.parametrize("first", [0, 5, 12])
def test_a_flipped_byte_of_a_record_is_damage_of_that_record(first: int) -> None:
    """SD-17: in the last segment too, for its index proves that the record was durable."""
    report = look(flipped(FILES, segment_name(0, first), 128 + 40))
    finding = only(report)
    assert (finding.kind, finding.first, finding.next_transaction_id) == (
        FindingKind.DAMAGE,
        first,
        first + 1,
    )
    assert (report.records_failed, report.records) == (1, 21)
    assert "CRC-32" in finding.text


def test_the_last_record_is_damage_where_the_index_names_it() -> None:
    content = FILES[SEG]
    report = look(cut(FILES, SEG, len(content) - 3))
    assert (only(report).kind, only(report).first) == (FindingKind.DAMAGE, 15)


def test_bytes_beyond_all_that_is_proved_are_a_torn_tail() -> None:
    """SD-15."""
    files = {**FILES, SEG: FILES[SEG] + b"begun"}
    report = look(files)
    assert only(report).kind is FindingKind.TORN_TAIL
    assert not report.is_damaged


def test_of_the_original_a_bad_record_above_the_mark_is_a_torn_tail() -> None:
    """Its index is written before the record, so that it proves nothing within a thousand."""
    files = their_files((5, 7, 4), mark=13)
    beyond = len(files[SEG]) - 10
    assert kinds(look(flipped(files, SEG, beyond)))[FindingKind.TORN_TAIL] >= 1
    assert not look(flipped(files, SEG, beyond)).is_damaged
    assert look(flipped(files, SEG, 128 + 40)).is_damaged


def test_a_wrong_index_entry_can_be_made_anew() -> None:
    report = look(flipped(FILES, segment_name(0, 5, ".idx"), 128 + 8 * 3 + 7))
    finding = only(report)
    assert (finding.kind, finding.first, finding.next_transaction_id) == (FindingKind.INDEX, 8, 9)
    assert (report.entries_failed, report.entries, report.records_failed) == (1, 21, 0)


def test_zeroed_entries_are_one_finding() -> None:
    report = look(put(FILES, segment_name(0, 5, ".idx"), 128, bytes(8 * 7)))
    assert (only(report).kind, only(report).count) == (FindingKind.INDEX, 7)


def test_an_index_that_ends_early_is_short() -> None:
    report = look(cut(FILES, IDX, len(FILES[IDX]) - 12))
    assert kinds(report) == {FindingKind.INDEX_SHORT: 2}
    assert not report.is_damaged
    assert (report.entries_failed, report.entries) == (2, 21)


def test_a_missing_index_can_be_made_anew() -> None:
    assert kinds(look(without(FILES, IDX))) == {FindingKind.INDEX: 1}


@pytest.mark.parametrize(
    ("path", "lost"), [(segment_name(0, 0), 5), (MIDDLE, 7), (SEG, 4), (segment_name(1, 3), 2)]
)
def test_a_missing_data_file_is_damage_to_all_its_records(path: str, lost: int) -> None:
    report = look(without(FILES, path))
    assert kinds(report) == {FindingKind.DAMAGE: 1}
    assert report.records_failed == lost


def test_a_missing_segment_is_a_hole_in_the_chain() -> None:
    files = without(FILES, MIDDLE, MIDDLE.replace(".seg", ".idx"))
    report = look(files)
    assert (only(report).kind, only(report).first, only(report).next_transaction_id) == (
        FindingKind.DAMAGE,
        5,
        12,
    )
    files = without(FILES, segment_name(0, 0), segment_name(0, 0, ".idx"))
    assert look(files).records_failed == 5


def test_records_below_the_mark_must_be_there() -> None:
    """SD-17: what the control file promises."""
    files = our_files((5,), mark=4)
    files = cut(files, segment_name(0, 0), 128)
    files = cut(files, segment_name(0, 0, ".idx"), 128)
    report = look(files)
    assert (report.records_failed, only(report).kind) == (5, FindingKind.DAMAGE)


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
@pytest.mark.parametrize(
    ("position", "text"),
    [
        (0, "format version"),
        (13, "cluster key"),
        (30, "partition"),
        (39, "first transaction"),
        (41, "reserved"),
        (127, "reserved"),
        (5, "created at"),
    ],
)
def test_every_part_of_a_segment_header_is_looked_at(suffix: str, position: int, text: str) -> None:
    """SD-10, SD-25."""
    report = look(flipped(FILES, segment_name(0, 5, suffix), position))
    assert report.is_damaged
    assert all(finding.kind is FindingKind.HEADER for finding in report.findings)
    assert any(text in finding.text for finding in report.findings)


def test_a_data_file_made_a_moment_after_its_index_is_the_originals_way() -> None:
    assert kinds(look(flipped(FILES, MIDDLE, 11, 0x02))) == {FindingKind.NOTE: 1}
    assert kinds(look(flipped(FILES, MIDDLE, 11, 0x01))) == {FindingKind.HEADER: 1}


def test_what_a_crash_in_a_roll_over_leaves_is_an_orphan() -> None:
    """D2."""
    index_header = FILES[IDX][:128]
    for files in (
        {segment_name(0, 16, ".idx"): index_header},
        {segment_name(0, 16, ".idx"): b""},
        {segment_name(0, 16, ".idx"): index_header, segment_name(0, 16): b""},
        {segment_name(0, 16, ".idx"): index_header, segment_name(0, 16): bytes(128)},
    ):
        report = look({**FILES, **files})
        assert kinds(report) == {FindingKind.ORPHAN: 1}
        assert not report.is_damaged


def test_strange_files_are_named() -> None:
    report = look(
        {
            **FILES,
            "waltz-storage.ctl.new": b"x",
            "notes.txt": b"mine",
            "0/damaged.json.new": b"{}",
            "waltz-storage.reserve": b"",
        }
    )
    assert kinds(report) == {FindingKind.ORPHAN: 2, FindingKind.NOTE: 1}


def test_what_the_node_remembers_as_damaged_is_told() -> None:
    """A partition that refuses to vote should not look sound."""
    damage = (DamagedRange(TransactionId(5), TransactionId(7)),)
    remembered = {**FILES, "0/damaged.json": encode_damage(damage, TransactionId(18))}
    report = look(remembered)
    assert kinds(report) == {FindingKind.NOTE: 1, FindingKind.DAMAGE: 1}
    assert "records 5 to 6" in report.findings[1].text
    lost = report.findings[0]
    assert (lost.first, lost.next_transaction_id) == (16, 18), "there were more records then"
    assert kinds(look({**FILES, "0/damaged.json": b"{}"})) == {FindingKind.PROMISE: 1}
    assert kinds(look({**FILES, "0/x.seg.damaged": b"old"})) == {FindingKind.NOTE: 1}


def test_a_directory_beyond_the_cluster_is_an_orphan() -> None:
    assert kinds(look({**FILES, segment_name(7, 0): b""}))[FindingKind.ORPHAN] >= 1


def test_files_of_a_partition_that_is_not_assigned_are_noted() -> None:
    report = look(storage_directory((3,), flags=1).to_files())
    assert kinds(report) == {FindingKind.NOTE: 2}
    assert any("not assigned" in finding.text for finding in report.findings)


def test_an_assigned_partition_without_files_is_damage() -> None:
    files = {path: data for path, data in FILES.items() if not path.startswith("1/")}
    report = look(files)
    assert (only(report).kind, only(report).first) == (FindingKind.DAMAGE, 0)
    report = look({**files, "1/notes.txt": b""})
    assert FindingKind.DAMAGE in kinds(report)


def test_a_missing_control_file_is_a_lost_promise() -> None:
    report = look(without(FILES, "waltz-storage.ctl"))
    assert kinds(report)[FindingKind.PROMISE] == 1


def test_a_record_of_another_partition_is_damage() -> None:
    """A misdirected write: the same ID, a good checksum, the wrong partition's request."""
    files = our_files((5,), (5,), size=80)
    swapped = {
        **files,
        segment_name(0, 0): files[segment_name(0, 0)][:128] + files[segment_name(1, 0)][128:],
    }
    report = look(swapped)
    assert (only(report).kind, only(report).count) == (FindingKind.DAMAGE, 5)
    assert "of partition 1" in only(report).text


def test_the_clients_checksum_is_looked_at_on_request() -> None:
    directory = parse_directory(our_files((3,)))
    (pair,) = directory.partitions[0]
    wrong = replace(pair.records[1], data_checksum=7)
    pair = replace(pair, records=(pair.records[0], wrong, pair.records[2]))
    files = {**our_files((3,)), segment_name(0, 0): pair.to_bytes()[0]}
    assert not look(files).findings
    report = look(files, data_checksums=True)
    assert (only(report).kind, only(report).first) == (FindingKind.DAMAGE, 1)


@pytest.mark.parametrize(
    ("path", "records"),
    [("0", 16), ("1", 5), (SEG, 4), (IDX, 4), (MIDDLE, 7), ("waltz-storage.ctl", 21)],
)
def test_a_part_can_be_verified_alone(path: str, records: int) -> None:
    report = look(FILES, path)
    assert (report.records, report.findings) == (records, [])


def test_a_partition_without_its_directory_is_verified_as_far_as_it_goes() -> None:
    files = {path: data for path, data in FILES.items() if path.startswith("0/")}
    disk = disk_of({path.replace("0/", "copy/", 1): data for path, data in files.items()})
    report = verify(disk, find_target(disk, f"{ROOT}/copy"), Options())
    assert (report.records, report.findings) == (16, [])


def check_one(files: Files, path: str, number: int) -> Report:
    disk = disk_of(files)
    target = find_target(disk, f"{ROOT}/{path}")
    return verify_transaction(disk, target, TransactionId(number), Options())


@pytest.mark.parametrize("number", [0, 4, 5, 11, 15])
def test_one_transaction_is_verified_alone(number: int) -> None:
    """TL-70: `--transaction`."""
    report = check_one(FILES, "0", number)
    assert (report.records, report.entries, report.findings) == (1, 1, [])


def test_one_transaction_that_is_damaged_is_found() -> None:
    files = flipped(FILES, MIDDLE, 128 + 40)
    assert only(check_one(files, "0", 5)).kind is FindingKind.DAMAGE
    assert check_one(files, "0", 6).findings == []
    wrong = flipped(FILES, segment_name(0, 5, ".idx"), 128 + 7)
    assert only(check_one(wrong, "0", 5)).kind is FindingKind.INDEX


def test_one_transaction_that_is_not_there_is_refused() -> None:
    for path, number in (("0", 16), (SEG, 5), (MIDDLE, 12), ("0", 99)):
        with pytest.raises(NotFoundError):
            check_one(FILES, path, number)


def look_twice(before: Files, after: Files) -> Report:
    """Verify while the files change from one state to the other between the two looks."""
    disk = disk_of(before)

    def wait() -> None:
        for path, content in after.items():
            if path in before:
                file = disk.open(f"{ROOT}/{path}")
            else:
                file = disk.open(f"{ROOT}/{path}", create=True)
            file.truncate(0)
            file.write_at(0, content)

    return verify(disk, find_target(disk, ROOT), Options(wait=wait))


def test_a_file_that_grows_meanwhile_is_no_damage() -> None:
    """TL-74: an append under way looks like a torn tail, until it is done."""
    grown = our_files((5, 7, 6), (3, 2), mark=2)
    for size in range(len(FILES[SEG]), len(grown[SEG])):
        assert look_twice({**FILES, SEG: grown[SEG][:size]}, grown).findings == []


def test_what_a_second_look_finds_again_is_believed() -> None:
    files = flipped(FILES, MIDDLE, 128 + 40)
    report = look_twice(files, files)
    assert (only(report).kind, report.records_failed) == (FindingKind.DAMAGE, 1)


def test_a_truncation_meanwhile_is_no_damage() -> None:
    """Two damaged places of which only one is there at the second look."""
    shorter = our_files((5, 7, 2), (3, 2), mark=2)
    halfway = {**FILES, SEG: shorter[SEG]}
    assert look(halfway).is_damaged
    assert look_twice(halfway, shorter).findings == []
    both = flipped(halfway, MIDDLE, 128 + 40)
    report = look_twice(both, {**shorter, MIDDLE: both[MIDDLE]})
    assert [finding.path for finding in report.findings] == [f"{ROOT}/{MIDDLE}"]


def test_promises_that_change_meanwhile_are_no_damage() -> None:
    torn = put(FILES, "waltz-storage.ctl", 128 + 4, b"half")
    assert look(torn).is_damaged
    assert look_twice(torn, FILES).findings == []
