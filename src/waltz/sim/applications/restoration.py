"""The time after a disaster: the archive is restored, and the restored cluster serves clients.

Owns the clients of the time after. One has lived through the restore, one is started again with all
that it had applied, one with what it had applied up to the fork, and one is new. Judges what they
are told and fed by the log of before, up to the fork, and by what was appended since; it takes from
the product the plan of the restore, and nothing about histories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final
from uuid import UUID

from waltz.archive.archive import Archive, read_archive
from waltz.archive.archive_target import Target
from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.tree import Tree
from waltz.errors import HistoryChangedError, PartitionNotReadyError, WaltzError
from waltz.host import Host
from waltz.restore.archived_cluster import archived_cluster
from waltz.restore.directory_filling import DirectoryWish, Filling, fill_directories
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.points import AtMarks, places
from waltz.restore.restore_plan import RestorePlan, StorageWish, make_plan
from waltz.restore.restored_nodes import restored_nodes
from waltz.restore.restoring_shell import begin_restore, report_directory, write_cluster
from waltz.sim.judges.archives import Log
from waltz.sim.simulated_cluster import STORAGE_DIRECTORY, SimulatedCluster, machine_of
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.types import NOTHING, PartitionId, TransactionId

LOST: Final = (0, 0, 1, 2, 5)
"""Transactions of a partition that a restore loses, at most."""

APPENDED: Final = 3
"""Transactions that each client appends to each partition of the restored cluster."""

CALL_SECONDS_MAX: Final = 120.0
"""Virtual time in which a call has to end after the restore, well or refused."""

LOOK_SECONDS: Final = 0.1
"""Between two looks whether a client has caught up."""

SAME_KEY_SHARE: Final = 0.7
"""The share of restores after which the log is the same one, with another history."""


class Follower(WaltzClientCallbacks):
    """An application that keeps its marks, and the history that they are of."""

    prefetch = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.fed: dict[PartitionId, dict[TransactionId, bytes]] = {}
        self.marks: dict[PartitionId, TransactionId] = {}
        self.histories: dict[PartitionId, UUID] = {}
        self.errors: list[str] = []

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return self.marks.get(partition_id, NOTHING)

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        return self.histories.get(partition_id)

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        if self.histories.get(partition_id) == before:
            self.histories[partition_id] = history

    def apply_transaction(self, transaction: Transaction) -> None:
        number, partition_id = transaction.transaction_id, transaction.partition_id
        if number != self.marks.get(partition_id, NOTHING) + 1:
            self.errors.append(f"{self.name} is fed {number} out of order")
        self.fed.setdefault(partition_id, {})[number] = transaction.data
        self.marks[partition_id] = number

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.errors.append(f"{self.name} in partition {partition_id}: {error!r}")


class Restoration:
    """One restore of an archive that has all of `log`, and the cluster that begins with it."""

    def __init__(
        self,
        source: str,
        cluster: SimulatedCluster,
        target: Target,
        log: Log,
        on_loss: Callable[[], None],
        *,
        tells_key: bool,
    ) -> None:
        """`on_loss` is called when no process of the cluster is alive any more. `tells_key`:
        whether all servers tell clients the cluster's key. Otherwise nothing keeps a client that
        lived on from the servers of a clone at the same addresses."""
        self._on_loss = on_loss
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._random = random = Random(f"{source}/restoration")
        self._cluster = cluster
        self._sites = cluster.sites
        self._log = log
        self._archive: Archive = read_archive(target)
        self._old_key = cluster.cluster_key
        self.same_key = random.random() < SAME_KEY_SHARE or not tells_key
        bound = random.choice(LOST)
        self.lasts = {
            p: TransactionId(max(-1, len(records) - 1 - random.randint(0, bound)))
            for p, records in log.items()
        }
        self._after: dict[PartitionId, list[bytes]] = {p: [] for p in log}
        """The data appended since the restore, in order."""
        self._has_caught_up = asyncio.Event()
        self._is_restored = asyncio.Event()

    @property
    def loses(self) -> bool:
        """Whether anything of the log is gone."""
        return any(last + 1 < len(self._log[p]) for p, last in self.lasts.items())

    async def run(self) -> list[str]:
        """Restore, and go on; return what is wrong."""
        survivor = Follower("a client that lived on")
        living = asyncio.ensure_future(
            self._sites.run("survivor", lambda host: self._live_on(survivor, host))
        )
        await asyncio.wait(
            [living, asyncio.ensure_future(self._has_caught_up.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for name in (*self._cluster.storages, *self._cluster.servers):
            site = self._sites.site(name)
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
        self._on_loss()
        plan = await self._restore()
        fresh = Follower("a new client")
        await self._go_on(fresh, refused=False)
        await self._go_on(self._stopped("a client below the fork", self.lasts), refused=False)
        ends = {p: TransactionId(len(records) - 1) for p, records in self._log.items()}
        above = self._stopped("a client with all of the log", ends)
        await self._go_on(above, refused=not self.same_key or self.loses)
        self._is_restored.set()
        await living
        self._judge_survivor(survivor, plan)
        return self.wrong

    def _stopped(self, name: str, most: dict[PartitionId, TransactionId]) -> Follower:
        """Return an application that has applied the log up to `most`, and is not running."""
        found = Follower(name)
        for p, last in most.items():
            found.marks[p] = last
            found.fed[p] = {each.transaction_id: each.data for each in self._log[p][: last + 1]}
            found.histories[p] = self._old_key
        if most is self.lasts and not self.same_key:
            found.histories.clear()  # else it is of another log
        return found

    # The restore

    async def _restore(self) -> RestorePlan:
        random = self._random
        archived = archived_cluster(self._archive)
        plan = make_plan(
            archived,
            places(self._archive, AtMarks(self.lasts), len(self.lasts)),
            archive=self._archive.url,
            point="simulated",
            same_key=self.same_key,
            storages=None,
            name=None,
            restore_id=UUID(int=random.getrandbits(128), version=4),
            new_key=UUID(int=random.getrandbits(128), version=4),
            wall_milliseconds=1,
        )
        disks = {
            machine_of(each.replica_id): SimulatedDisk([STORAGE_DIRECTORY])
            for each in plan.storages
        }
        reports = {
            each.replica_id: self._filled(disks[machine_of(each.replica_id)], plan, each)
            for each in plan.storages
        }
        coordinator = self._sites.coordinator
        is_fewer = random.random() < 0.5
        coordinator.rebuild(Tree(), transactions=0 if is_fewer else coordinator.transactions)

        async def write(host: Host) -> None:
            await begin_restore(host.coordinator, plan, root=DEFAULT_ROOT)
            for report in reports.values():
                await report_directory(host.coordinator, report, root=DEFAULT_ROOT)
            made = restored_nodes(plan, archived, reports, root=DEFAULT_ROOT)
            await write_cluster(host.coordinator, made, root=DEFAULT_ROOT)
            await host.coordinator.close()

        await self._sites.run("restorer", write)
        self._cluster.begin_again(plan.cluster_key, disks)
        self.counts["same key" if self.same_key else "new key"] += 1
        self.counts["transactions lost"] += sum(
            len(self._log[p]) - 1 - last for p, last in self.lasts.items()
        )
        return plan

    def _filled(
        self, disk: SimulatedDisk, plan: RestorePlan, storage: StorageWish
    ) -> DirectoryReport:
        random = self._random
        filling = Filling(
            disk, lambda: 1, lambda: UUID(int=random.getrandbits(128), version=4),
            segment_bytes_threshold=2_000,
        )  # fmt: skip
        wish = DirectoryWish(
            plan.restore_id,
            plan.cluster_key,
            plan.partition_count,
            storage.replica_id,
            {p: (plan.lasts[p], plan.sessions[p]) for p in storage.partitions},
        )
        (report,) = fill_directories(filling, self._archive.blocks, {STORAGE_DIRECTORY: wish})
        return report

    # The time after

    async def _go_on(self, follower: Follower, *, refused: bool) -> None:
        """Start a client of the application, and have it append; judge what comes of it."""
        fed = {p: dict(each) for p, each in follower.fed.items()}
        what = await self._sites.run(follower.name, lambda host: self._outcome(follower, host))
        self._judge_outcome(follower, what, refused=refused)
        if refused:
            if follower.fed != fed:
                self.wrong.append(f"restore: {follower.name} is fed on beyond the fork")
            return
        for p, last in self.lasts.items():
            kept = [each.data for each in self._log[p][: last + 1]]
            if [*follower.fed.get(p, {}).values()] != [*kept, *self._after[p]]:
                self.wrong.append(
                    f"restore: {follower.name} was fed another log of partition {p} than the one up"
                    f" to {last} and what was appended since"
                )

    async def _outcome(self, follower: Follower, host: Host) -> Exception | None:
        """Return what the client is refused with; None: it has appended, and applied all."""
        try:
            async with (
                asyncio.timeout(CALL_SECONDS_MAX),
                AsyncWaltzClient(host, follower) as client,
            ):
                await self._append(follower.name, client)
                await client.wait_until_applied()
        except (WaltzError, TimeoutError) as error:
            return error
        return None

    async def _append(self, name: str, client: AsyncWaltzClient) -> None:
        for p in self.lasts:
            for number in range(APPENDED):
                data = f"{name} {number}".encode()
                told = await self._appended(client, p, data)
                self._after[p].append(data)
                if told != self.lasts[p] + len(self._after[p]):
                    self.wrong.append(f"restore: an append to partition {p} became {told}")

    async def _appended(
        self, client: AsyncWaltzClient, partition_id: PartitionId, data: bytes
    ) -> TransactionId:
        """Append, however long it takes: a client that lived on may be refused by the coordinator
        for two session timeouts, and does not know the servers of now until then."""
        while True:
            try:
                return await client.append(partition_id, data)
            except PartitionNotReadyError as error:
                if error.may_be_written:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    def _judge_outcome(self, follower: Follower, what: Exception | None, *, refused: bool) -> None:
        self.wrong += follower.errors
        by_name = isinstance(what, HistoryChangedError)
        if not refused and what is not None:
            self.wrong.append(f"restore: {follower.name} is refused: {what!r}")
        elif refused and self.same_key and not by_name:
            self.wrong.append(
                f"restore: {follower.name} is not refused by name: {what!r}; it has what the log"
                " has not"
            )
        elif refused and what is None:
            self.wrong.append(f"restore: {follower.name} goes on with another log")
        self.counts["refused" if refused else "gone on"] += 1

    async def _live_on(self, survivor: Follower, host: Host) -> None:
        """Follow all of the log before the restore, and append after it."""
        what: Exception | None = None
        async with AsyncWaltzClient(host, survivor) as client:
            while any(
                survivor.marks.get(p, NOTHING) < len(records) - 1
                for p, records in self._log.items()
            ):
                await asyncio.sleep(LOOK_SECONDS)
            self._has_caught_up.set()
            await self._is_restored.wait()
            try:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await self._append(survivor.name, client)
                    await client.wait_until_applied()
            except (WaltzError, TimeoutError) as error:
                what = error
        self._judge_outcome(survivor, what, refused=not self.same_key or self.loses)

    def _judge_survivor(self, survivor: Follower, plan: RestorePlan) -> None:
        is_refused = not self.same_key or self.loses
        for p, records in self._log.items():
            wanted = [each.data for each in records]
            if not is_refused:
                wanted += self._after[p]
            if [*survivor.fed.get(p, {}).values()] != wanted:
                self.wrong.append(f"restore: {survivor.name} was fed another log of partition {p}")
        if not is_refused and {*survivor.histories.values()} != {plan.restore_id}:
            self.wrong.append(f"restore: {survivor.name} has not taken the new history over")
