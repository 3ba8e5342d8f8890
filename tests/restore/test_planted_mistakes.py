"""Mistakes that a competent person could make in a restore: the tests find each of them.

Each is planted into the product, and the judge that has to find it is run as its own test runs it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.restore import test_directory_filling as filling
from tests.restore import test_restored_nodes as nodes
from tests.restore import test_restoring_shell as shell
from tests.restore.memory_archive import make_archive
from waltz.errors import ConfigurationError, NodeExistsError
from waltz.host import Coordinator, Disk
from waltz.restore import directory_filling, restored_nodes, restoring_shell
from waltz.restore.restored_nodes import RestoredNodes
from waltz.storage.directory import control_file, restored_files
from waltz.storage.directory.node_file import NodeHeader
from waltz.storage.directory.restored_files import RestoredPartition
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.types import PartitionId, TransactionId

ARCHIVE = make_archive([120, 0, 40])
LASTS = [110, -1, 39]


def kill_everywhere() -> None:
    """What `test_a_restore_killed_before_any_operation_leaves_nothing_that_half_serves` does, which
    finds nothing where there is no mistake."""
    total = filling.operations_of(ARCHIVE, LASTS)
    for number in range(1, total + 1):
        filling.judge_killed_restore(ARCHIVE, LASTS, number, seed=number)


def test_a_control_file_that_is_made_before_the_records_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nodes that do not look for the mark."""
    monkeypatch.setattr(control_file, "refuse_unfinished", lambda disk, directory: None)
    right = directory_filling._fill

    def fill(door: Any, blocks: Any, directories: Sequence[Any]) -> None:
        for each in directories:
            header = NodeHeader(
                each.wish.cluster_key, each.wish.partition_count, each._directory_id, 1, 1
            )
            partitions = {
                p: RestoredPartition(
                    each.wish.info(p), SegmentTrace(TransactionId(0), TransactionId(0))
                )
                for p in each.wish.partitions
            }
            restored_files.write_promises(door.disk, each.path, header, partitions)
        right(door, blocks, directories)

    monkeypatch.setattr(directory_filling, "_fill", fill)
    with pytest.raises(AssertionError):
        kill_everywhere()


def test_a_mark_that_goes_before_the_control_file_is_there_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then nothing says that a restore was here, and the same command cannot start over."""
    right = restored_files.write_promises

    def write(
        disk: Disk,
        directory: str,
        header: NodeHeader,
        partitions: Mapping[PartitionId, RestoredPartition],
    ) -> None:
        mark = f"{directory}/{restored_files.MARK_FILE_NAME}"
        disk.remove(mark)
        disk.sync_directory(directory)
        right(disk, directory, header, partitions)
        disk.open(mark, create=True).close()  # for the caller, which removes it

    monkeypatch.setattr(directory_filling, "write_promises", write)
    with pytest.raises((AssertionError, ConfigurationError)) as raised:
        kill_everywhere()
    assert "is not empty" in str(raised.value) or "--start-over" in str(raised.value)


def test_a_control_file_that_is_not_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves a part of it, in a directory without the mark."""

    def write(disk: Disk, directory: str, name: str, content: bytes) -> None:
        file = disk.open(f"{directory}/{name}", create=True)
        file.write_at(0, content)
        file.close()

    monkeypatch.setattr(restored_files, "_write_file", write)
    with pytest.raises(struct.error):  # the second reader finds no whole file
        kill_everywhere()


def test_store_parameters_that_are_written_first_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then processes start while the rest is missing, and the restore cannot be resumed."""
    right = restoring_shell.write_cluster

    async def write(coordinator: Coordinator, restored: RestoredNodes, *, root: str) -> None:
        await coordinator.create(*restored.last)
        await right(coordinator, restored, root=root)

    monkeypatch.setattr(shell, "write_cluster", write)
    with pytest.raises(NodeExistsError, match="there is a cluster"):
        shell.test_the_cluster_exists_once_everything_is_written()


@pytest.mark.parametrize(
    ("name", "test"),
    [
        (
            "CLIENT_IDS_SKIPPED",
            nodes.test_no_client_and_no_server_gets_an_id_that_one_of_the_former_cluster_has,
        ),
        (
            "GENERATIONS_SKIPPED",
            nodes.test_the_first_server_assigns_all_partitions_under_higher_generations,
        ),
    ],
)
def test_numbers_that_are_not_passed_over_are_found(
    name: str, test: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restored_nodes, name, 0)
    with pytest.raises(AssertionError):
        test()
