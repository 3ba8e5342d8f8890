"""The archiver at work on a log in memory: what ends up in the archive, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Barrier, Event
from typing import Any
from uuid import UUID

import pytest
from obstore.store import MemoryStore

from tests.archive.archives import KEY, OTHER_KEY, batch, directory_target
from tests.archive.listed_log import ListedLog
from tests.cluster.simulated import World, simulate
from waltz.archive.archive import Archive, read_archive
from waltz.archive.archive_target import BucketTarget, Target
from waltz.archive.archive_verification import verify
from waltz.archive.archived_history import archived_history
from waltz.archive.archiver import Archiver
from waltz.archive.archiver_metrics import ArchiverState
from waltz.archive.archiver_shell import ArchiverProcess, batch_of
from waltz.archive.log_copier_shell import first_difference
from waltz.cluster.log_history import LogHistory
from waltz.errors import ConfigurationError, CorruptionError
from waltz.host import Host
from waltz.operators.replicas_shell import Replica
from waltz.record import RecordBatch
from waltz.sim.loop import Process
from waltz.system.real_host import real_host
from waltz.types import PartitionId, TlsSettings, TransactionId

ZERO = PartitionId(0)


def run(
    log: ListedLog,
    target: Target,
    *,
    object_bytes: int = 1_000,
    verify_replicas: int = 1,
    rate: int | None = None,
) -> ArchiverState:
    """Archive what the log has now, and return how that ended."""

    async def main() -> ArchiverState:
        process = ArchiverProcess(
            real_host(None, TlsSettings()),
            lambda: log,
            target,
            Archiver(every_seconds=0.1, object_bytes=object_bytes, once=True),
            object_bytes=object_bytes,
            verify_replicas=verify_replicas,
            bytes_per_second=rate,
        )
        await process.start()
        await process.run()
        return process.state()

    return asyncio.run(main())


def expect_equal(archive: Archive, log: ListedLog) -> None:
    for partition, mark in log.marks.items():
        assert archive.end(partition) == mark + 1
        found = b"".join(archive.blocks(partition, 0, mark + 1))
        assert found == batch(0, mark + 1, partition=partition, size=log.size).block


def test_the_archive_equals_the_log_and_grows_with_it(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 99, 1: -1, 2: 4})
    for _ in range(12):
        state = run(log, target)
        assert state.is_healthy
        expect_equal(read_archive(target), log)
        log.marks[ZERO] = TransactionId(log.marks[ZERO] + 9)
        log.tree["/notes/a"] = b"%d" % log.marks[ZERO]
    archive = read_archive(target)
    assert archive.coordinator_nodes["/notes/a"] == b"%d" % (log.marks[ZERO] - 9)
    found = verify(target, log=log, replicas=True)
    assert (found.verdict, found.compared) == (True, ["node-0:1", "node-1:1", "node-2:1"])
    # Objects are full, but for the last ones.
    assert all(file.raw_count <= 1_000 for file in archive.partitions[ZERO].files)


def test_small_objects_become_large_ones() -> None:
    target = memory_target()
    log = ListedLog({0: -1})
    for _ in range(70):
        log.marks[ZERO] = TransactionId(log.marks[ZERO] + 1)
        assert run(log, target, object_bytes=1_000_000).is_healthy
    expect_equal(read_archive(target), log)
    files = read_archive(target).partitions[ZERO].files
    assert [each.end - each.first for each in files] == [64, 1, 1, 1, 1, 1, 1]
    assert files[0].level == 2
    assert verify(target).verdict is True


def test_records_are_compared_with_another_copy_before_they_are_named(tmp_path: Path) -> None:
    log = ListedLog({0: 9})
    assert run(log, directory_target(tmp_path / "a")).is_healthy
    sources = [each[0] for each in log.reads]
    assert len(sources) == len(set(sources)) == 2
    verified = read_archive(directory_target(tmp_path / "a")).contents.verified[ZERO]
    assert sorted(verified) == sorted(sources)


class Meeting(ListedLog):
    """Hands out nothing of a copy until another copy is read as well."""

    meeting = Barrier(2, timeout=60)

    def read(self, *asked: Any) -> Generator[RecordBatch, None, None]:
        self.meeting.wait()
        yield from super().read(*asked)


def test_the_compared_copies_are_read_at_the_same_time(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = Meeting({0: 9})
    assert run(log, target).is_healthy
    expect_equal(read_archive(target), log)


def test_copies_that_fill_their_objects_differently_are_found_to_differ(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 99}, size=40)
    log.differing = {each: {17} for each in log.copies[1:]}  # a shorter record: room for another
    state = run(log, target, object_bytes=40 * len(batch(0, 1, size=40).block))
    assert state.partitions[0].trouble is not None
    assert "from transaction 17 on" in state.partitions[0].trouble
    assert read_archive(target).end(0) == 0


class Healed(ListedLog):
    """A copy that differs until all copies have been read once."""

    def read(self, *asked: Any) -> Generator[RecordBatch, None, None]:
        if len(self.reads) >= len(self.copies):
            self.differing = {}
        yield from super().read(*asked)


def test_a_copy_that_is_equal_when_read_again_is_not_said_to_differ(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = Healed({0: 9}, copies=2)
    log.differing = {log.copies[1]: {3}}
    state = run(log, target)
    assert not state.partitions[0].is_different
    assert state.partitions[0].trouble is not None
    assert "equal records when read again" in state.partitions[0].trouble
    assert read_archive(target).end(0) == 0
    assert run(log, target).is_healthy


def test_all_copies_are_compared_if_asked_for_and_none_if_not(tmp_path: Path) -> None:
    log = ListedLog({0: 9})
    assert run(log, directory_target(tmp_path / "a"), verify_replicas=64).is_healthy
    assert len({each[0] for each in log.reads}) == 3
    log = ListedLog({0: 9})
    assert run(log, directory_target(tmp_path / "b"), verify_replicas=0).is_healthy
    assert {each[0] for each in log.reads} == {"log"}
    log = ListedLog({0: 9}, copies=1)
    assert run(log, directory_target(tmp_path / "c")).is_healthy
    assert len(log.reads) == 1


def test_nothing_is_archived_that_copies_disagree_on(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 29, 1: 5})
    log.differing = {each: {17} for each in log.copies[1:]}
    state = run(log, target, object_bytes=1_000_000)
    partition = state.partitions[0]
    assert partition.is_different
    assert partition.trouble is not None
    assert "from transaction 17 on" in partition.trouble
    assert (partition.archived, partition.lag_transactions) == (-1, 30)
    archive = read_archive(target)
    assert (archive.end(0), archive.end(1)) == (0, 6)


def test_a_silent_copy_is_replaced_by_another_one(tmp_path: Path) -> None:
    for silent in range(3):
        log = ListedLog({0: 29})
        log.silent = {log.copies[silent]}
        assert run(log, directory_target(tmp_path / f"{silent}")).is_healthy
        log = ListedLog({0: 29})
        log.damaged = {log.copies[silent]: 3}
        assert run(log, directory_target(tmp_path / f"damaged-{silent}")).is_healthy


def test_without_enough_copies_it_waits_and_says_why(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 29})
    log.silent = {*log.copies[1:]}
    state = run(log, target)
    assert state.partitions[0].trouble is not None
    assert "does not answer" in state.partitions[0].trouble
    assert read_archive(target).end(0) == 0
    log.silent = set()
    assert run(log, target).is_healthy


def test_an_unknown_mark_is_told(tmp_path: Path) -> None:
    log = ListedLog({0: 29, 1: 3})
    log.unknown = {1}
    state = run(log, directory_target(tmp_path / "a"))
    assert not state.is_healthy
    assert read_archive(directory_target(tmp_path / "a")).end(0) == 30


def test_another_clusters_archive_is_refused(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    run(ListedLog({0: 3}), target)
    with pytest.raises(ConfigurationError, match="not of cluster"):
        run(ListedLog({0: 3}, key=OTHER_KEY), target)
    assert read_archive(target).cluster_key == KEY


def test_a_damaged_object_is_not_joined_into_another_one(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: -1})
    for _ in range(7):
        log.marks[ZERO] = TransactionId(log.marks[ZERO] + 1)
        run(log, target, object_bytes=1_000_000)
    path = read_archive(target).partitions[ZERO].files[3].path
    data = bytearray(target.get(path, 10_000))
    data[70] ^= 1
    target.put(path, bytes(data))
    log.marks[ZERO] = TransactionId(7)
    state = run(log, target, object_bytes=1_000_000)
    assert state.trouble is not None
    assert "is damaged" in state.trouble
    archive = read_archive(target)
    assert archive.end(0) == 8
    assert len(archive.partitions[ZERO].files) == 8


class Slow:
    """A target that lets something happen before each write of a manifest."""

    def __init__(self, target: Target, before: Callable[[], None]) -> None:
        self._target = target
        self._before = before

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path.startswith("manifests/"):
            self._before()
        return self._target.put_if_absent(path, data)


def test_an_archiver_that_loses_a_race_goes_on_from_the_winners_commit(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 9})
    other = [1]

    def win() -> None:
        if other.pop() if other else 0:
            run(ListedLog({0: 4}), target)

    state = run(log, Slow(target, win))  # type: ignore[arg-type]
    assert (state.races_lost, state.is_healthy) == (1, True)
    expect_equal(read_archive(target), log)
    assert verify(target, log=log).verdict is True


def test_blocks_become_batches_again() -> None:
    records = batch(5, 9)
    found = batch_of(records.block, TransactionId(5))
    assert (found, found.offsets.tolist()) == (records, records.offsets.tolist())
    with pytest.raises(CorruptionError):
        batch_of(records.block[:-1], TransactionId(5))
    with pytest.raises(CorruptionError):
        batch_of(records.block, TransactionId(6))


@pytest.mark.parametrize("place", [0, 6, 7, 8, 20])
def test_the_first_difference_is_found_however_records_are_cut(place: int) -> None:
    log = ListedLog({0: 20})
    log.differing = {log.copies[1]: {place}}
    replicas = log.replicas(ZERO)
    one = iter([batch(0, 5), batch(5, 16)])
    assert first_difference(one, log.read(replicas[1], ZERO, 0, 21)) == place
    same = iter([batch(0, 5), batch(5, 16)])
    assert first_difference(same, log.read(replicas[0], ZERO, 0, 21)) is None
    shorter = iter([batch(0, 5)])
    assert first_difference(log.read(replicas[0], ZERO, 0, 21), shorter) == 5


def simulated_process(
    host: Host, log: ListedLog, target: Target, *, once: bool = False, rate: int | None = None
) -> ArchiverProcess:
    return ArchiverProcess(
        host,
        lambda: log,
        target,
        Archiver(every_seconds=1, object_bytes=1_000, once=once),
        object_bytes=1_000,
        verify_replicas=1,
        bytes_per_second=rate,
    )


async def archived(host: Host, log: ListedLog, target: Target, **options: Any) -> ArchiverState:
    process = simulated_process(host, log, target, **options)
    await process.start()
    await process.run()
    return process.state()


def memory_target() -> Target:
    return BucketTarget("memory:", MemoryStore())


def test_a_rate_is_kept_by_pauses() -> None:
    async def story(world: World) -> float:
        log, began = ListedLog({0: 99}), world.loop.time()
        await world.run(lambda host: archived(host, log, memory_target(), once=True, rate=1_000))
        return world.loop.time() - began

    assert simulate(story) >= 2 * len(batch(0, 100).block) / 1_000


def race(seed: int) -> None:
    """Run three archivers at once, each killed at any moment and replaced, on a log that grows."""
    random = Random(seed)
    log, target = ListedLog({0: 20, 1: -1}), memory_target()

    async def forever(host: Host) -> None:
        await archived(host, log, target)

    async def story(world: World) -> ArchiverState:
        running: list[Process] = []
        for number in range(12):
            running.append(world.start(forever, f"archiver-{number}"))
            for partition in log.marks:
                more = random.randrange(40)
                log.marks[partition] = TransactionId(log.marks[partition] + more)
            await asyncio.sleep(random.uniform(0, 2))
            if len(running) > 2:
                world.kill(running.pop(random.randrange(3)))
        for process in running:
            world.kill(process)
        return await world.run(lambda host: archived(host, log, target, once=True))

    state = simulate(story, seed)
    assert state.is_healthy, state
    expect_equal(read_archive(target), log)
    assert verify(target, log=log, replicas=True).verdict is True


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(100, 400), marks=pytest.mark.long)], ids=["8", "300"]
)
def test_archivers_that_race_and_are_killed_leave_the_log_and_nothing_else(seeds: range) -> None:
    for seed in seeds:
        race(seed)


def test_figures_are_unknown_until_they_are_known(tmp_path: Path) -> None:
    async def main() -> ArchiverState:
        process = ArchiverProcess(
            real_host(None, TlsSettings()),
            lambda: ListedLog({0: 1}),
            directory_target(tmp_path / "a"),
            Archiver(every_seconds=1, object_bytes=1_000),
            object_bytes=1_000,
            verify_replicas=1,
        )
        return process.state()

    state = asyncio.run(main())
    assert (state.manifest, state.last_success_milliseconds, state.partitions) == (None, None, ())
    assert replace(state, trouble="x").is_healthy is False


def restored(first: int, number: int = 1) -> LogHistory:
    return LogHistory(UUID(int=number), 1_790_812_800_000, {ZERO: TransactionId(first)})


def test_an_archive_beyond_the_point_of_a_restore_is_not_continued(tmp_path: Path) -> None:
    """The log has grown past the archive's end again: its marks alone would tell nothing."""
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 9})
    assert run(log, target).is_healthy
    log.restore(restored(9))
    log.marks[ZERO] = TransactionId(30)
    state = run(log, target)
    assert not state.is_healthy
    assert "the archive has applied partition 0" in str(state.trouble)
    assert "Transactions 9 to 9, as they were applied, are not in the log" in str(state.trouble)
    assert read_archive(target).end(ZERO) == 10


def test_an_archive_that_ends_at_the_point_of_a_restore_follows_on(tmp_path: Path) -> None:
    """The node of histories comes with what is archived first: a second restore is noticed, too."""
    target = directory_target(tmp_path / "a")
    log = ListedLog({0: 9})
    assert run(log, target).is_healthy
    log.restore(restored(10))
    log.marks[ZERO] = TransactionId(20)
    assert run(log, target).is_healthy
    archive = read_archive(target)
    assert archive.end(ZERO) == 21
    assert archived_history(archive.contents, KEY) == UUID(int=1)
    log.marks[ZERO] = TransactionId(25)
    assert run(log, target).is_healthy
    log.restore(restored(10), restored(24, 2))
    assert "Transactions 24 to 25" in str(run(log, target).trouble)


class Stuck(ListedLog):
    """A log whose second copy gives nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__({0: 20})
        self.reached, self.released = Event(), Event()

    def read(
        self, source: Replica | None, partition_id: PartitionId, first: int, end: int
    ) -> Generator[RecordBatch, None, None]:
        if self.reads:
            self.reached.set()
            self.released.wait(30)
        yield from super().read(source, partition_id, first, end)


def test_an_archiver_that_is_stopped_while_it_compares_reports_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Stuck()

    async def main() -> None:
        process = ArchiverProcess(
            real_host(None, TlsSettings()),
            lambda: log,
            directory_target(tmp_path / "a"),
            Archiver(every_seconds=0.1, object_bytes=1_000),
            object_bytes=1_000,
            verify_replicas=1,
        )
        await process.start()
        running = asyncio.create_task(process.run())
        assert await asyncio.to_thread(log.reached.wait, 30)
        stopping = asyncio.create_task(process.stop())
        await running
        log.released.set()
        await stopping

    asyncio.run(main())
    assert "archiving_failed" not in caplog.text
    assert read_archive(directory_target(tmp_path / "a")).end(0) == 0
