"""What is there: paths, names, the control file, the end of a log."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.storage.inspected import (
    KEY,
    ROOT,
    cut,
    disk_of,
    flipped,
    our_files,
    put,
    segment_name,
    without,
)
from waltz.errors import ConfigurationError, CorruptionError
from waltz.storage.inspection.survey import (
    InspectionTarget,
    end_of_log,
    find_target,
    list_partition,
    partition_directories,
    read_control,
)
from waltz.types import PartitionId, TransactionId

FILES = our_files((5, 7), (3,), mark=2)
DISK = disk_of({**FILES, "11/notes.txt": b"", "10/notes.txt": b"", "readme": b""})


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", InspectionTarget(ROOT)),
        ("/waltz-storage.ctl", InspectionTarget(ROOT)),
        ("/0", InspectionTarget(ROOT, f"{ROOT}/0")),
        ("/10", InspectionTarget(ROOT, f"{ROOT}/10")),
        (f"/{segment_name(0, 5)}", InspectionTarget(ROOT, f"{ROOT}/0", TransactionId(5))),
        (f"/{segment_name(0, 5, '.idx')}", InspectionTarget(ROOT, f"{ROOT}/0", TransactionId(5))),
    ],
)
def test_a_path_names_a_directory_a_partition_or_a_segment(
    path: str, target: InspectionTarget
) -> None:
    assert find_target(DISK, ROOT + path) == target


def test_a_copy_of_a_partition_is_in_no_storage_directory() -> None:
    disk = disk_of({"copy/" + segment_name(0, 0)[2:]: b"", "0/" + segment_name(0, 0)[2:]: b""})
    assert find_target(disk, f"{ROOT}/copy") == InspectionTarget(None, f"{ROOT}/copy")
    assert find_target(disk, f"{ROOT}/0") == InspectionTarget(None, f"{ROOT}/0")
    assert find_target(disk, ROOT) == InspectionTarget(ROOT), "its control file is lost"


@pytest.mark.parametrize("path", ["/", ROOT + "/readme", ROOT + "/nowhere"])
def test_anything_else_is_refused_with_what_was_expected(path: str) -> None:
    with pytest.raises(ConfigurationError, match=path):
        find_target(disk_of({"readme": b""}), path)


def test_partitions_come_by_their_numbers() -> None:
    assert partition_directories(DISK, ROOT) == [f"{ROOT}/{n}" for n in (0, 1, 10, 11)]


def test_segments_are_listed_with_what_is_missing_of_them() -> None:
    """Journals are passed over."""
    files = {**without(FILES, segment_name(0, 5)), "0/damaged.json": b"{}", "0/7.seg": b""}
    journal = segment_name(0, 5).replace(".seg", ".jnl")
    files |= {journal: b"x", f"{journal}.new": b"x"}
    found = list_partition(disk_of(files), f"{ROOT}/0")
    assert found.partition_id == 0
    assert [(each.first, each.data_bytes) for each in found.segments] == [
        (0, len(FILES[segment_name(0, 0)])),
        (5, None),
    ]
    assert found.others == ("7.seg", "damaged.json")
    assert found.following(TransactionId(0)) == 5, "its index has entries"
    assert found.following(TransactionId(5)) is None


def test_a_bare_index_at_the_end_is_no_part_of_the_chain() -> None:
    files = {**FILES, segment_name(0, 12, ".idx"): FILES[segment_name(0, 5, ".idx")][:128]}
    found = list_partition(disk_of(files), f"{ROOT}/0")
    assert [each.first for each in found.chain] == [0, 5]
    assert found.following(TransactionId(5)) is None


def test_the_control_file_is_read_as_it_stands() -> None:
    control = read_control(DISK, f"{ROOT}/waltz-storage.ctl")
    assert (control.version, control.cluster_key, control.partition_count) == (0, KEY, 2)
    entry = control.entries[1]
    assert (entry.partition_id, entry.found_id, entry.current) == (1, 1, 1)
    assert entry.info is not None
    assert (entry.info.session_id, entry.info.low_water_mark) == (4, 2)


def test_the_struct_that_checks_out_counts() -> None:
    """SD-05, SD-06."""
    path = "waltz-storage.ctl"
    current = flipped(FILES, path, 128 + 40)
    entry = read_control(disk_of(current), f"{ROOT}/{path}").entries[0]
    assert (entry.current, entry.info and entry.info.session_id) == (0, 3)
    both = flipped(current, path, 128 + 4)
    assert read_control(disk_of(both), f"{ROOT}/{path}").entries[0].info is None
    same = put(FILES, path, 128 + 40, FILES[path][128 + 4 : 128 + 40])
    assert read_control(disk_of(same), f"{ROOT}/{path}").entries[0].current is None


def test_a_damaged_count_reads_no_more_than_there_is() -> None:
    files = put(FILES, "waltz-storage.ctl", 28, b"\x7f\xff\xff\xff")
    control = read_control(disk_of(files), f"{ROOT}/waltz-storage.ctl")
    assert (control.partition_count, len(control.entries)) == (2**31 - 1, 2)
    files = put(FILES, "waltz-storage.ctl", 28, b"\xff\xff\xff\xff")
    assert read_control(disk_of(files), f"{ROOT}/waltz-storage.ctl").entries == ()


def test_no_control_file_and_a_short_one_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"waltz-storage\.ctl"):
        read_control(disk_of({}), f"{ROOT}/waltz-storage.ctl")
    with pytest.raises(CorruptionError, match="has 127 bytes"):
        read_control(disk_of(cut(FILES, "waltz-storage.ctl", 127)), f"{ROOT}/waltz-storage.ctl")


@pytest.mark.parametrize(
    ("files", "end"),
    [
        (FILES, 12),
        (cut(FILES, segment_name(0, 5, ".idx"), 128 + 8 * 3), 12),
        (without(FILES, segment_name(0, 5, ".idx")), 12),
        (cut(FILES, segment_name(0, 5), len(FILES[segment_name(0, 5)]) - 1), None),
        (flipped(FILES, segment_name(0, 5, ".idx"), 128 + 8 * 6 + 7), None),
        (cut(cut(FILES, segment_name(0, 5), 128), segment_name(0, 5, ".idx"), 128), 5),
    ],
)
def test_the_end_of_the_log_is_found_by_the_last_index(
    files: dict[str, bytes], end: int | None
) -> None:
    disk = disk_of(files)
    assert end_of_log(disk, list_partition(disk, f"{ROOT}/0")) == end


def test_an_empty_directory_has_no_end_of_log() -> None:
    disk = disk_of({"0/notes.txt": b""})
    found = list_partition(disk, f"{ROOT}/0")
    assert (end_of_log(disk, found), found.segments, found.bytes) == (None, (), 0)
    assert found.partition_id == PartitionId(0)
    assert list_partition(disk_of({"copy/notes.txt": b""}), f"{ROOT}/copy").partition_id is None
    assert isinstance(KEY, UUID)
