"""Control file and node file judged together: what holds, and what is said (SD-03 to SD-08)."""

from __future__ import annotations

import pytest

from tests.storage.independent_reader import Files
from tests.storage.inspected import (
    DIRECTORY_ID,
    KEY,
    ROOT,
    cut,
    disk_of,
    flipped,
    our_files,
    put,
    their_files,
    without,
)
from waltz.storage.inspection.findings import FindingKind
from waltz.storage.inspection.promises import NO_PROMISES, Promises, read_promises
from waltz.types import PartitionId

FILES = our_files((5,), (3,), mark=2)
CTL = "waltz-storage.ctl"
NODE = "waltz-storage.node"
ZERO, ONE = PartitionId(0), PartitionId(1)


def promises_of(files: Files) -> Promises:
    return read_promises(disk_of(files), ROOT)


def test_sound_promises_hold() -> None:
    promises = promises_of(FILES)
    assert promises.findings == ()
    assert (promises.cluster_key, promises.partition_count) == (KEY, 2)
    assert promises.node is not None
    assert promises.node.header.directory_id == DIRECTORY_ID
    info, slot = promises.info(ONE), promises.slot(ONE)
    assert info is not None
    assert slot is not None
    assert (info.session_id, info.local_low_water_mark, slot.fence) == (4, 2, 9)
    assert promises.index_is_proof(ONE)


def test_of_the_original_there_is_no_node_file() -> None:
    promises = promises_of(their_files((5,), mark=2))
    assert [finding.kind for finding in promises.findings] == [FindingKind.NOTE]
    assert (promises.node, promises.slot(ZERO)) == (None, None)
    assert promises.cluster_key == KEY
    assert not promises.index_is_proof(ZERO)


def test_an_index_proves_nothing_once_the_original_has_written() -> None:
    """It knows nothing of the copy in the node file."""
    theirs = their_files((5,), (3,), mark=3)
    promises = promises_of({**FILES, CTL: theirs[CTL]})
    assert not promises.index_is_proof(ZERO)
    info = promises.info(ZERO)
    assert info is not None
    assert info.local_low_water_mark == 3


def test_what_a_writer_changes_between_both_looks_is_no_finding() -> None:
    """TL-74: a node writes one of the files while the other is read."""
    disk = disk_of(flipped(FILES, CTL, 40, 0x01))

    def finish() -> None:
        disk.damage(f"{ROOT}/{CTL}", 0, FILES[CTL])

    assert read_promises(disk, ROOT, lambda: None).findings
    assert read_promises(disk, ROOT, finish).findings == ()


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_byte_of_both_files_is_looked_at(mask: int) -> None:
    for path in (CTL, NODE):
        for position in range(len(FILES[path])):
            promises = promises_of(flipped(FILES, path, position, mask))
            assert promises.findings, (path, position)
            assert all(finding.kind.is_damage for finding in promises.findings)


@pytest.mark.parametrize("path", [CTL, NODE])
def test_every_size_of_both_files_is_noticed(path: str) -> None:
    for size in range(0, len(FILES[path]), 7):
        assert promises_of(cut(FILES, path, size)).findings, size
    assert promises_of({**FILES, path: FILES[path] + b"\0"}).findings


def test_what_one_file_has_lost_holds_by_the_other() -> None:
    promises = promises_of(put(FILES, CTL, 128 + 4, bytes(72)))
    info = promises.info(ZERO)
    assert info is not None
    assert (info.session_id, info.local_low_water_mark) == (4, 2)
    assert [finding.kind for finding in promises.findings] == [FindingKind.PROMISE]


def test_what_both_have_lost_is_not_known() -> None:
    theirs = their_files((5,), (3,), mark=2)
    promises = promises_of(put(theirs, CTL, 128 + 4, bytes(72)))
    assert promises.info(ZERO) is None
    assert promises.info(ONE) is not None
    assert [finding.kind for finding in promises.findings] == [
        FindingKind.NOTE,
        FindingKind.PROMISE,
    ]


def test_a_missing_control_file_is_one_finding() -> None:
    promises = promises_of(without(FILES, CTL))
    assert [finding.kind for finding in promises.findings] == [FindingKind.PROMISE]
    assert (promises.control, promises.info(ZERO), promises.cluster_key) == (None, None, None)


def test_a_damaged_count_does_not_decide_how_much_is_read() -> None:
    for count in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\x0f\0\0"):
        promises = promises_of(put(FILES, CTL, 28, count))
        assert promises.findings
        assert promises.partition_count <= 2


def test_without_a_storage_directory_nothing_is_promised() -> None:
    assert NO_PROMISES.info(ZERO) is None
    assert NO_PROMISES.info(None) is None
    assert not NO_PROMISES.index_is_proof(None)
    assert NO_PROMISES.slot(None) is None
