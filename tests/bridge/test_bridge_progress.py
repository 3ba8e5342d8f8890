"""The file of progress: its text, its lock, its replacement, and what may be skipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from waltz.bridge.bridge_progress import (
    PROGRESS_BYTES_MAX,
    SKIPS_KEPT_MAX,
    BridgeProgress,
    PartitionProgress,
    ProgressFile,
    Skip,
    check_place,
    parse_progress,
    progress_text,
)
from waltz.cluster.histories import Histories
from waltz.errors import (
    ClientAheadError,
    ConfigurationError,
    CorruptionError,
    DirectoryInUseError,
    HistoryChangedError,
)
from waltz.system.real_disk import RealDisk
from waltz.types import PartitionId

KEY, HISTORY = UUID(int=1), UUID(int=2)
PROGRESS = BridgeProgress(
    KEY,
    {0: PartitionProgress(17, KEY), 3: PartitionProgress(0, HISTORY)},
    (Skip(3, 4, 5, 'a "reason"\n', 1_700_000_000_000),),
    2,
)


def test_what_is_written_is_read() -> None:
    assert parse_progress(progress_text(PROGRESS), "p") == PROGRESS


def test_the_text_is_the_format_of_before() -> None:
    assert json.loads(progress_text(PROGRESS)) == {
        "format": 1,
        "cluster": str(KEY),
        "partitions": {
            "0": {"next": 17, "history": str(KEY)},
            "3": {"next": 0, "history": str(HISTORY)},
        },
        "skips": [
            {
                "partition": 3,
                "first": 4,
                "last": 5,
                "reason": 'a "reason"\n',
                "at": 1_700_000_000_000,
            }
        ],
        "forgotten_skips": 2,
    }


def test_no_text_but_a_progress_is_taken_for_one() -> None:
    text = progress_text(PROGRESS)
    for size in range(len(text) - 2):
        with pytest.raises(CorruptionError, match="is no progress"):
            parse_progress(text[:size], "p")
    for old, new in ((b"17", b"-1"), (b"17", b"true"), (b"17", b'"1"'), (b'"0"', b'"-1"')):
        with pytest.raises(CorruptionError):
            parse_progress(text.replace(old, new, 1), "p")
    with pytest.raises(CorruptionError):
        parse_progress(b"[" * 100_000, "p")
    with pytest.raises(ConfigurationError, match="a later release"):
        parse_progress(text.replace(b'"format": 1', b'"format": 2'), "p")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = ProgressFile(RealDisk(), str(tmp_path / "p.json"))
    assert file.load() is None
    file.save(PROGRESS)
    assert file.load() == PROGRESS
    (tmp_path / "p.json.new").write_bytes(b"x" * 100_000)  # left by a process that was killed
    smaller = replace(PROGRESS, skips=())
    file.save(smaller)
    assert file.load() == smaller
    (tmp_path / "p.json").write_bytes(b" " * (PROGRESS_BYTES_MAX + 1))
    with pytest.raises(CorruptionError, match="bytes"):
        file.load()


def test_one_process_at_a_time_has_the_file(tmp_path: Path) -> None:
    first = ProgressFile(RealDisk(), str(tmp_path / "p.json"))
    unlock = first.lock()
    with pytest.raises(DirectoryInUseError):
        ProgressFile(RealDisk(), str(tmp_path / "p.json")).lock()
    unlock()
    first.lock()()


def test_a_skip_begins_where_the_partition_waits() -> None:
    found = PROGRESS.skipping(Skip(0, 17, 19, "bad", 5), HISTORY)
    assert found.partitions[0] == PartitionProgress(20, HISTORY)
    assert found.skips[-1] == Skip(0, 17, 19, "bad", 5)
    for first, last in ((16, 19), (18, 19), (17, 16)):
        with pytest.raises(ConfigurationError, match="waits at transaction 17"):
            PROGRESS.skipping(Skip(0, first, last, "bad", 5), KEY)
    with pytest.raises(ConfigurationError, match="not begun"):
        PROGRESS.skipping(Skip(7, 0, 0, "bad", 5), KEY)


def test_skips_that_are_not_named_any_more_are_counted() -> None:
    progress = replace(PROGRESS, skips=(), forgotten_skips=0)
    for each in range(17, 17 + SKIPS_KEPT_MAX + 3):
        progress = progress.skipping(Skip(0, each, each, "bad", 5), KEY)
    assert (len(progress.skips), progress.forgotten_skips) == (SKIPS_KEPT_MAX, 3)
    assert progress.skips[0].first == 20


def test_a_progress_belongs_to_one_cluster() -> None:
    PROGRESS.check_cluster(KEY, "p")
    with pytest.raises(HistoryChangedError, match=f"{KEY}, and cluster {HISTORY} answers"):
        PROGRESS.check_cluster(HISTORY, "p")


def test_what_was_posted_is_to_be_in_the_log() -> None:
    histories, number = Histories(KEY), PartitionId(0)
    check_place(histories, number, PartitionProgress(17, KEY), 16)
    check_place(histories, number, PartitionProgress(0, KEY), -1)
    with pytest.raises(ClientAheadError, match=r"through transaction 16, and the log .* with 15"):
        check_place(histories, number, PartitionProgress(17, KEY), 15)
    with pytest.raises(HistoryChangedError, match="no history of the log"):
        check_place(histories, number, PartitionProgress(17, HISTORY), 99)
