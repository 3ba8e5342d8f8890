"""The archivers of a run: two at once, killed at any moment and started again, on a log that
suffers.

Owns when they live, and the log that they read: marks are asked of the servers, records are those
on a storage node's disk at that moment. The archive lies in memory; a put is durable at once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final
from uuid import UUID

from waltz.archive.archive_target import Listed
from waltz.archive.archiver import Archiver
from waltz.archive.archiver_shell import ArchiverProcess
from waltz.archive.cluster_log import ArchivedLog
from waltz.cluster.cluster_shell import create_if_absent
from waltz.cluster.histories import Histories
from waltz.errors import ArchiveDamagedError, NotFoundError, UnavailableError, WaltzError
from waltz.host import Host
from waltz.operators.replicas_shell import Replica
from waltz.reader.reader_shell import AsyncLogReader
from waltz.record import RecordBatch, batch_from_block
from waltz.sim.judges.archives import Log, Marks, check_archive
from waltz.sim.judges.replicas import blocks_on_disk
from waltz.sim.loop import WALL_CLOCK_START_MILLISECONDS, Process
from waltz.sim.simulated_cluster import PATHS, STORAGE_DIRECTORY, SimulatedCluster, machine_of
from waltz.types import PartitionId, TransactionId

ARCHIVER: Final = "archiver"
ARCHIVERS: Final = 2
"""Archivers that run at the same time: of two commits one is first."""

LIFE_SECONDS_MAX: Final = 2.0
"""Between the start of an archiver and its death."""

NOTE: Final = "spark-simulated"
NOTE_DATA: Final = b'{"format":1,"batch":7,"marks":{},"clients":[],"refusal":null,"tasks":[]}'
"""A note as a Spark sink keeps it, to see what a restore makes of it."""

EVERY_SECONDS: Final = 0.1
"""Between two commits of an archiver."""

OBJECT_BYTES: Final = 10_000
"""Bytes of the records of an object: room for several commits, so that most runs join some."""

ASK_SECONDS_MAX: Final = 2.0
"""The time in which a server has to tell a mark."""

ENDING_SECONDS_MAX: Final = 120.0
"""Virtual time until the last archiver has archived all that the log has."""


class MemoryTarget:
    """The place of an archive, in memory. Implements `Target`; `on_manifest` is called with each
    manifest that was written."""

    url = "memory:archive"

    def __init__(self, now: Callable[[], float]) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.on_manifest: Callable[[bytes], None] = lambda data: None
        self._now = now

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.put(path, data)
        if path.startswith("manifests/"):
            self.on_manifest(data)
        return True

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        return [path for path, data in objects if not self.put_if_absent(path, data)]

    def put(self, path: str, data: bytes) -> None:
        # By a clock like those of the archivers, which remove what nobody has named for a day.
        self.objects[path] = data, WALL_CLOCK_START_MILLISECONDS + int(self._now() * 1000)

    def get(self, path: str, bytes_max: int) -> bytes:
        data = self._found(path)
        if len(data) > bytes_max:
            raise ArchiveDamagedError(f"{path} has {len(data)} bytes", path)
        return data

    def get_range(self, path: str, start: int, count: int) -> bytes:
        return self._found(path)[start : start + count]

    def exists(self, path: str) -> bool:
        return path in self.objects

    def list(self, prefix: str, after: str | None = None) -> Iterator[Listed]:
        for path, (data, changed_at) in sorted(self.objects.items()):
            if path.startswith(f"{prefix}/") and (after is None or path > after):
                yield Listed(path, len(data), changed_at)

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def _found(self, path: str) -> bytes:
        if path not in self.objects:
            raise NotFoundError(f"there is no {path}")
        return self.objects[path][0]


class SufferingLog:
    """The log of the run's cluster. Implements `ArchivedLog`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.marks: dict[PartitionId, TransactionId] = {}
        self._cluster = cluster

    @property
    def cluster_key(self) -> UUID:
        return self._cluster.cluster_key

    @property
    def partition_count(self) -> int:
        return len(self._cluster.partition_ids)

    @property
    def histories(self) -> Histories:
        return Histories(self.cluster_key, ())

    def mark(self, partition_id: PartitionId) -> TransactionId:
        if partition_id not in self.marks:
            raise UnavailableError(f"nobody has told the mark of partition {partition_id}")
        return self.marks[partition_id]

    def replicas(self, partition_id: PartitionId) -> list[Replica]:
        return [
            Replica(partition_id, each, None, True, None)
            for each in self._cluster.current_replicas(partition_id)
        ]

    def read(
        self, source: Replica | None, partition_id: PartitionId, first: int, end: int
    ) -> Generator[RecordBatch, None, None]:
        assert source is not None, "records are read of storage nodes"
        disk = self._cluster.sites.disk(machine_of(source.replica_id))
        records = blocks_on_disk(disk.contents(), f"{STORAGE_DIRECTORY}/{partition_id}")
        if len(records) < end:
            raise UnavailableError(f"{source.replica_id} holds {len(records)} records, not {end}")
        yield batch_from_block(b"".join(records[first:end]), TransactionId(first))

    def nodes(self) -> Mapping[str, bytes]:
        return self._cluster.nodes()

    def close(self) -> None: ...


class Archivist:
    """Has archivers at work as long as clients are, and one more after them."""

    def __init__(
        self,
        source: str,
        cluster: SimulatedCluster,
        now: Callable[[], float],
        committed: Callable[[PartitionId], int],
    ) -> None:
        """`committed` returns the last transaction that any server has known as committed."""
        self.target = MemoryTarget(now)
        self.log = SufferingLog(cluster)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._committed = committed
        self.target.on_manifest = self._look_at_manifest
        self._random = Random(f"{source}/archive")
        self._sites = cluster.sites

    def _look_at_manifest(self, data: bytes) -> None:
        """Nothing is archived that no server has ever known as committed: it may be rolled back."""
        for each in json.loads(data)["files"]:
            mark = self._committed(PartitionId(each["partition"]))
            if each["end"] > mark + 1:
                self.violations.append(
                    f"archive: transactions of partition {each['partition']} up to"
                    f" {each['end'] - 1} are archived when {mark} is the last committed one"
                )

    async def run(self, is_over: Callable[[], bool], host: Host) -> None:
        """Ask for marks, and start and kill archivers, until `is_over`."""
        with suppress(WaltzError):  # the coordinator is away
            await create_if_absent(host.coordinator, PATHS.notes, None)
            await create_if_absent(host.coordinator, PATHS.note(NOTE), NOTE_DATA)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._ask_marks(host, is_over))
            for number in range(ARCHIVERS):
                group.create_task(self._live_and_die(number, asking.done))
        await host.coordinator.close()

    async def _ask_marks(self, host: Host, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._ask_once(host)
            await asyncio.sleep(EVERY_SECONDS)

    async def _ask_once(self, host: Host) -> None:
        with suppress(WaltzError):  # the coordinator, or servers, are away
            async with AsyncLogReader(host, timeout_seconds=ASK_SECONDS_MAX) as reader:
                for number in range(self.log.partition_count):
                    with suppress(WaltzError):
                        told = await reader.high_water_mark(number)
                        self.log.marks[PartitionId(number)] = told

    async def _live_and_die(self, number: int, is_over: Callable[[], bool]) -> None:
        lives = 0
        while not is_over():
            lives += 1
            process = Process(f"{ARCHIVER}-{number}-{lives}")
            host = self._sites.guest(process)
            self._sites.loop.spawn(process, self._archive(host, once=False))
            await asyncio.sleep(self._random.uniform(0.0, LIFE_SECONDS_MAX))
            process.dead = True
            self._sites.coordinator.lose(process)
            self.counts["killed"] += 1

    async def judge(self, cuts: Sequence[Marks], log: Log, host: Host) -> list[str]:
        """Archive all that the log has now, and return what is wrong with the archive and with what
        restores make of it."""
        trouble: str | None = "no mark was told"
        until = self._sites.loop.time() + ENDING_SECONDS_MAX
        while trouble is not None and self._sites.loop.time() < until:
            self.log.marks.clear()  # a mark that was told before is not the end of the log now
            await self._ask_once(host)
            trouble = await self._archive(host, once=True)
            await asyncio.sleep(EVERY_SECONDS)
        wrong = [*self.violations, *check_archive(self.target, cuts, log, self._random)]
        if trouble is not None:
            wrong.append(f"archive: it does not come to the end of the log: {trouble}")
        return wrong

    async def _archive(self, host: Host, *, once: bool) -> str | None:
        log: ArchivedLog = self.log
        process = ArchiverProcess(
            host,
            lambda: log,
            self.target,
            Archiver(every_seconds=EVERY_SECONDS, object_bytes=OBJECT_BYTES, once=once),
            object_bytes=OBJECT_BYTES,
            verify_replicas=1,
        )
        try:
            await process.start()
            await process.run()
        except WaltzError as error:
            return str(error)
        state = process.state()
        self.counts["races lost"] += state.races_lost
        self.counts["commits"] += state.commits
        troubles = [each.trouble for each in state.partitions if each.trouble is not None]
        return state.trouble or next(iter(troubles), None)
