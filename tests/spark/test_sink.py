"""What a sink writes is in the log once, whatever happens to who writes it; all in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from waltz import (
    ClusterNotes,
    NoCallbacks,
    PartitionLocalLock,
    TlsSettings,
    WaltzClient,
    WaltzClientCallbacks,
)
from waltz.errors import ConfigurationError, HistoryChangedError, VersionConflictError
from waltz.spark.sink import SinkAccess, TaskRows, end_once, expect_all_tasks, write_rows
from waltz.spark.sink_progress import TaskIdentity, TaskProgress
from waltz.testing import Faults, InMemoryCluster

LOCK_TYPE = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))
Row = tuple[int, int, bytes]


@dataclass(frozen=True)
class InMemoryAccess:
    """Opens clients and notes of a cluster in memory."""

    cluster: InMemoryCluster
    faults: Faults = field(default_factory=Faults)

    def open_client(
        self,
        cluster: str,
        callbacks: WaltzClientCallbacks,
        *,
        tls: TlsSettings | None = None,
        **options: Any,
    ) -> WaltzClient:
        options["mount_seconds_max"] = 60.0
        return self.cluster.open_client(callbacks, faults=self.faults, **options)

    def open_notes(self, cluster: str, *, tls: TlsSettings | None = None) -> ClusterNotes:
        return self.cluster.open_notes()

    @property
    def access(self) -> SinkAccess:
        return SinkAccess("memory", open_client=self.open_client, open_notes=self.open_notes)


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(partitions=2, for_tests=True) as cluster:
        yield cluster


def identity(batch: int = 0, task: int = 0, run: str = "r") -> TaskIdentity:
    return TaskIdentity("accounts", batch, task, run)


def batch_of(rows: Iterable[Row]) -> Any:
    partitions, headers, data = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array(partitions, pa.int32()),
            "header": pa.array(headers, pa.int32()),
            "data": pa.array(data, pa.binary()),
        }
    )


def batches_of(rows: list[Row], size: int = 7) -> Iterator[Any]:
    return (batch_of(rows[start : start + size]) for start in range(0, len(rows), size))


def log_of(cluster: InMemoryCluster) -> list[Row]:
    with cluster.open_reader() as log:
        return [
            (partition, int(header), bytes(data))
            for partition in range(cluster.partition_count)
            for run in log.read(partition, 0, log.high_water_mark(partition) + 1)
            for header, data in zip(run.headers, run.data, strict=True)
        ]


ROWS: list[Row] = [(n % 2, n % 3, b"row %d" % n) for n in range(40)]


def test_rows_are_in_the_log_in_their_order_when_the_task_ends(cluster: InMemoryCluster) -> None:
    """PS-07."""
    written = write_rows(InMemoryAccess(cluster).access, identity(), batches_of(ROWS))
    assert written == TaskRows(appended=40, found=0)
    assert log_of(cluster) == sorted(ROWS, key=lambda row: row[0])


def test_a_second_attempt_adds_nothing(cluster: InMemoryCluster) -> None:
    """PS-07."""
    access = InMemoryAccess(cluster).access
    write_rows(access, identity(), batches_of(ROWS))
    for run in ("r", "after a crash of the driver"):
        written = write_rows(access, identity(run=run), batches_of(ROWS))
        assert written == TaskRows(appended=0, found=40)
    assert Counter(log_of(cluster)) == Counter(ROWS)


def test_an_attempt_goes_on_where_one_has_died(cluster: InMemoryCluster) -> None:
    """PS-07."""
    access = InMemoryAccess(cluster).access

    def dying() -> Iterator[Any]:
        yield batch_of(ROWS[:25])
        raise ConnectionResetError("the executor is gone")

    with pytest.raises(ConnectionResetError):
        write_rows(access, identity(), dying())
    written = write_rows(access, identity(), batches_of(ROWS))
    assert written.appended + written.found == 40
    assert Counter(log_of(cluster)) == Counter(ROWS)


@pytest.mark.parametrize("seed", range(4))
def test_attempts_that_run_at_once_write_each_row_once(cluster: InMemoryCluster, seed: int) -> None:
    """PS-07. Speculative execution and zombies: nobody is fenced."""
    rows = [*ROWS, *ROWS[:5], *ROWS[:2]]

    def attempt(number: int) -> TaskRows:
        faults = Faults(seed=10 * seed + number)
        faults.fault_rate, faults.max_delay_seconds = 0.1, 0.002 * number
        access = InMemoryAccess(cluster, faults).access
        return write_rows(access, identity(), batches_of(rows, 3 + number))

    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(attempt, range(4)))
    assert all(each.appended + each.found == len(rows) for each in written)
    assert sum(each.appended for each in written) == len(rows)
    assert Counter(log_of(cluster)) == Counter(rows)


def test_rows_of_the_same_content_are_all_written(cluster: InMemoryCluster) -> None:
    rows: list[Row] = [(0, 1, b"same")] * 5 + [(1, 1, b"same"), (0, 2, b"same")]
    access = InMemoryAccess(cluster).access
    assert write_rows(access, identity(), batches_of(rows)).appended == 7
    assert write_rows(access, identity(), batches_of(rows)).appended == 0
    assert Counter(log_of(cluster)) == Counter(rows)


def test_what_others_write_is_not_taken_for_a_row(cluster: InMemoryCluster) -> None:
    access = InMemoryAccess(cluster).access
    with cluster.open_client(NoCallbacks()) as stranger:
        write_rows(access, identity(task=1), [batch_of(ROWS[:3])])
        stranger.append(0, ROWS[0][2], header=ROWS[0][1])
        assert write_rows(access, identity(), batches_of(ROWS)).appended == 40
        stranger.append(0, ROWS[0][2], header=ROWS[0][1])
    assert write_rows(access, identity(), batches_of(ROWS)).found == 40
    assert len(log_of(cluster)) == 45


def test_the_next_batch_may_have_the_same_rows(cluster: InMemoryCluster) -> None:
    access = InMemoryAccess(cluster).access
    for batch in range(2):
        assert write_rows(access, identity(batch), batches_of(ROWS)).appended == 40
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2011 task 0 of batch 0 of accounts: bat"):
        write_rows(access, identity(0), batches_of(ROWS))
    assert Counter(log_of(cluster)) == Counter(ROWS * 2)


def test_other_rows_than_an_earlier_attempt_had_are_an_error(cluster: InMemoryCluster) -> None:
    """PS-07."""
    access = InMemoryAccess(cluster).access
    write_rows(access, identity(), [batch_of([(0, 1, b"as it was")])])
    for changed in ([(0, 1, b"as it is")], [(0, 2, b"as it was")], [(1, 1, b"as it was")]):
        with pytest.raises(
            ConfigurationError,
            match=r"^WALTZ-2009 task 0 of batch 0 .*wrote transaction 0 of partition 0, which is",
        ):
            write_rows(access, identity(), [batch_of(changed)])
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2009 "):
        write_rows(access, identity(), [])


def test_fewer_tasks_than_before_are_an_error(cluster: InMemoryCluster) -> None:
    """PS-07. A task that is not run any more cannot find what it has written."""
    access = InMemoryAccess(cluster).access
    for task in range(3):
        write_rows(access, identity(task=task), [batch_of(ROWS[task : task + 1])])
    expect_all_tasks(access, identity(), 3)
    expect_all_tasks(access, identity(1), 1)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2009 batch 0 .* 2 tasks now; .* task 2 "):
        expect_all_tasks(access, identity(), 2)
    write_rows(access, identity(1), [batch_of(ROWS[:1])])
    expect_all_tasks(access, identity(1), 1)


ONCE = TaskIdentity("once-1", 0, 0, "run", is_once=True)


def noted(cluster: InMemoryCluster) -> list[bytes | None]:
    """The notes of a write without a name: of its tasks, and of the first."""
    with cluster.open_notes() as notes:
        return [notes.read(ONCE.tasks_note), notes.read(ONCE.note)]


def test_an_attempt_that_begins_after_a_write_without_a_name_is_over_adds_nothing(
    cluster: InMemoryCluster,
) -> None:
    access = InMemoryAccess(cluster).access.bound(once=ONCE)
    write_rows(access, ONCE, batches_of(ROWS))
    end_once(access, ONCE)
    assert noted(cluster) == [None, None]
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2011 task 0 .*: the write is over"):
        write_rows(access, ONCE, batches_of(ROWS))
    assert Counter(log_of(cluster)) == Counter(ROWS)
    assert noted(cluster) == [None, None]


@pytest.mark.parametrize("begun", [1, 15, 40])
def test_an_attempt_whose_write_without_a_name_is_over_meanwhile_adds_nothing(
    cluster: InMemoryCluster, begun: int
) -> None:
    access = InMemoryAccess(cluster).access.bound(once=ONCE)

    def overtaken() -> Iterator[Any]:
        yield batch_of(ROWS[:begun])
        write_rows(access, ONCE, batches_of(ROWS))
        end_once(access, ONCE)
        yield from batches_of(ROWS[begun:])

    # It may have seen the others' rows in the log while their notes were there, or not.
    with suppress(ConfigurationError):
        write_rows(access, ONCE, overtaken())
    assert Counter(log_of(cluster)) == Counter(ROWS)
    assert noted(cluster) == [None, None]


def test_no_rows_need_no_client(cluster: InMemoryCluster) -> None:
    assert write_rows(InMemoryAccess(cluster).access, identity(), []) == TaskRows(0, 0)
    with cluster.open_notes() as notes:
        assert notes.read(identity().note) is None


def with_lock(kind: str, rows: list[Row], lock: tuple[str, int]) -> Any:
    locks = [[{"name": lock[0], "id": lock[1]}]] * len(rows)
    return batch_of(rows).append_column(kind, pa.array(locks, LOCK_TYPE))


@pytest.mark.parametrize("kind", ["write_locks", "read_locks"])
def test_a_refused_lock_fails_the_batch_and_names_who_has_it(
    cluster: InMemoryCluster, kind: str
) -> None:
    """PS-07, PM-20, PM-21."""
    faults = Faults()
    rows: list[Row] = [(0, 0, b"first"), (0, 0, b"second")]

    def beaten() -> Iterator[Any]:
        yield with_lock(kind, rows[:1], ("account", 17))
        with cluster.open_client(NoCallbacks()) as other:
            while not log_of(cluster):
                pass
            faults.suspend_feed()
            other.append(0, b"quicker", write_locks=[PartitionLocalLock("account", 17)])
            yield with_lock(kind, rows[1:], ("account", 17))
            faults.resume_feed()

    access = InMemoryAccess(cluster, faults).access
    fault = r"^WALTZ-2010 task 0 of batch 0 .*: lock account 17 of a row .* taken by transaction 1$"
    with pytest.raises(VersionConflictError, match=fault):
        write_rows(access, identity(), beaten())
    # Spark runs the task again: that would pass, and does in the next run.
    again = [with_lock(kind, rows, ("account", 17))]
    with pytest.raises(VersionConflictError, match=fault):
        write_rows(access, identity(), again)
    assert write_rows(access, identity(run="next"), again) == TaskRows(appended=1, found=1)
    assert [data for _, _, data in log_of(cluster)] == [b"first", b"quicker", b"second"]


def test_rows_of_one_task_may_have_the_same_lock(cluster: InMemoryCluster) -> None:
    access = InMemoryAccess(cluster).access
    rows = [(0, 0, b"%d" % n) for n in range(5)]
    written = write_rows(access, identity(), [with_lock("write_locks", rows, ("account", 17))])
    assert written.appended == 5
    assert Counter(log_of(cluster)) == Counter(rows)


def test_append_locks_are_recorded_for_others(cluster: InMemoryCluster) -> None:
    """PM-22."""
    faults = Faults()
    with cluster.open_client(NoCallbacks(), faults=faults) as other:
        other.append(0, b"there")
        faults.suspend_feed()
        access = InMemoryAccess(cluster).access
        row: list[Row] = [(0, 0, b"row")]
        write_rows(access, identity(), [with_lock("append_locks", row, ("account", 17))])
        with ThreadPoolExecutor(1) as pool:
            lock = [PartitionLocalLock("account", 17)]
            late = pool.submit(other.append, 0, b"late", write_locks=lock)
            assert not late.done()
            faults.resume_feed()
            assert late.result(60) == 2


def test_a_false_refusal_is_tried_again(cluster: InMemoryCluster) -> None:
    """A server that has just taken a partition over refuses old marks; nobody else wrote."""
    faults = Faults()
    faults.fail_next_lock(3)
    access = InMemoryAccess(cluster, faults).access
    rows: list[Row] = [(0, 0, b"row")]
    written = write_rows(access, identity(), [with_lock("write_locks", rows, ("account", 17))])
    assert written.appended == 1


@pytest.mark.parametrize(
    ("column", "value", "fault"),
    [
        ("partition", pa.array([0, None], pa.int32()), "row 1 of the task: partition is null"),
        ("partition", pa.array([0, 2], pa.int32()), "partition is 2; .* partitions 0 to 1"),
        ("data", pa.array([None, b""], pa.binary()), "row 0 of the task: data is null"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    cluster: InMemoryCluster, column: str, value: Any, fault: str
) -> None:
    batch = batch_of([(0, 0, b"a"), (1, 0, b"b")])
    batch = batch.set_column(batch.schema.get_field_index(column), column, value)
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1008 .*{fault}"):
        write_rows(InMemoryAccess(cluster).access, identity(), [batch])


def test_the_cluster_remembers_all_attempts_of_a_batch(cluster: InMemoryCluster) -> None:
    access = InMemoryAccess(cluster).access
    for _ in range(3):
        write_rows(access, identity(7), [batch_of(ROWS)])
    with cluster.open_notes() as notes:
        progress = TaskProgress.decode(cast(bytes, notes.read(identity().note)))
    assert progress.batch == 7
    assert len(set(progress.clients)) == 3
    assert progress.marks == {0: -1, 1: -1}


def test_a_write_that_was_planned_on_another_cluster_writes_nothing(
    cluster: InMemoryCluster, tmp_path: Path
) -> None:
    """F-1: neither what the driver asks nor what a task reaches may be another cluster."""
    (tmp_path / "metadata").touch()
    bound = InMemoryAccess(cluster).access.bound(str(tmp_path))
    write_rows(bound, identity(), batches_of(ROWS))
    with InMemoryCluster(partitions=2, for_tests=True) as other:
        keys = bound.cluster_key, InMemoryAccess(other).access.bound().cluster_key
        with pytest.raises(
            HistoryChangedError, match=f"cluster {keys[0]} was .* cluster {keys[1]}"
        ):
            InMemoryAccess(other).access.bound(str(tmp_path))
        there = InMemoryAccess(other)
        for elsewhere in (
            replace(bound, open_notes=there.open_notes),
            replace(bound, open_client=there.open_client),
        ):
            with pytest.raises(
                HistoryChangedError, match=f"{keys[1]}; expected cluster .*{keys[0]}"
            ):
                write_rows(elsewhere, identity(batch=1), batches_of(ROWS))
        with pytest.raises(HistoryChangedError, match="which the option clusterKey"):
            replace(there.access, cluster_key=keys[0]).bound()
        assert log_of(other) == []
