"""The clients of a run, through all deaths of their processes.

Owns how far each client has come with its plan, and which application it works for: one that
outlives its process, or one that begins anew with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, Protocol, cast

from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import PermissionDeniedError, UnavailableError, WaltzError
from waltz.host import Coordinator, Disk, Host
from waltz.reader.reader_shell import AsyncLogReader
from waltz.reader.transaction_columns import TransactionColumns
from waltz.sim.applications.application import Application, Intent, submit
from waltz.sim.applications.bulks import BulkCall
from waltz.sim.applications.databases import DatabaseApplication
from waltz.sim.applications.transfers import Transfer, TransferApplication, Transfers
from waltz.sim.applications.waits import LEAVING_SHARE, WAITING_SHARE, Waits, is_told, unless_peace
from waltz.sim.applications.workloads import ClientPlan, draw_intent
from waltz.sim.judges.history import ContextVerdict, EndlessWait, FedRecord, OutcomeTold
from waltz.sim.loop import PROCESS
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.sim.sites import until_stopped
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.lifecycle_protocol import LIFECYCLE_SINCE

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks of a reader at the number of partitions."""

TIDE_SHARE: Final = 0.2
"""Share of transfers that wait for the next cut; the others follow them closely."""

ASKED_SHARE: Final = 0.2
"""Share of transactions whose outcome is asked for."""

ASKED_AGAIN_MAX: Final = 3
"""Transactions of a client's previous life whose outcome is asked for."""

ASKED_SECONDS_MAX: Final = 1.0
"""The outcome is asked for within this many seconds of the submit."""


class RunField(Protocol):
    """The surroundings of a client in a run."""

    @property
    def partition_count(self) -> int:
        """Return the present number of partitions."""
        ...

    @property
    def grows(self) -> bool:
        """Return whether the cluster gets more partitions during the run."""
        ...

    def next_version(self, name: str) -> int:
        """Return the latest version of the protocol that the process speaks in its next life."""
        ...

    server_addresses: tuple[Address, ...]
    """The addresses given to clients that have no coordinator."""
    progress: asyncio.Event
    """To be set when a client may be done."""

    @property
    def client_count(self) -> int:
        """Return the number of clients."""
        ...

    tide: asyncio.Event
    """Set when a cut is about to be taken; the next one is another event."""
    peace: asyncio.Event
    """Set once no client or fault has anything left to do."""

    def application(self, name: str, kind: str = "plain") -> Application:
        """Return a new application; `kind` is that of a `ClientPlan`."""
        ...

    async def reached(self, progress: float) -> None:
        """Return once this share of the run's transactions has ended."""
        ...


class _NobodyThere:
    """The coordinator of a client that must not use one."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"{name}: this client has no coordinator")


class SimulatedClient:
    """One client, from its first process to its last."""

    def __init__(self, field: RunField, name: str, plan: ClientPlan, random: Random) -> None:
        self.name = name
        self.plan = plan
        self.application = field.application(name, plan.application)
        self._field = field
        self._random = random
        self._asking = Random()
        self._asking.setstate(
            random.getstate()
        )  # a sequence of its own, so that the draws of what is submitted do not change
        again = Random()
        again.setstate(random.getstate())
        self._waiting = Random(f"waits {again.getrandbits(64)}")
        self._waits = self._waiting.random() < WAITING_SHARE
        self._leaves = not field.grows and self._waiting.random() < LEAVING_SHARE
        self._of_last_life: list[Intent] = []
        self._intents: list[Intent] = []
        self._begun_count = 0
        self._transferring: set[Transfer] = set()
        """The transfers of this life that are under way."""
        self._lives_count = 0

    @property
    def is_done(self) -> bool:
        """Return whether the client has submitted all that it planned, and all of that has
        ended."""
        history, name = self.application.history, self.application.name
        if self._transferring:
            return False
        return self._begun_count >= self.plan.transactions and not history.open_count(name)

    def die(self) -> None:
        """Take note that contexts without a verdict will never get one."""
        self.application.history.abandon(self.application.name, ContextVerdict.LOST)
        self._of_last_life, self._intents = self._intents[-ASKED_AGAIN_MAX:], []
        self._transferring.clear()
        self._field.progress.set()  # transfers have no context open between their two

    async def main(self, host: Host) -> None:
        """Run one process of the client."""
        await until_stopped(self._field.reached(self.plan.starts_at))
        if PROCESS.get().stop_wanted.is_set():
            return
        self._lives_count += 1
        if self.plan.forgets and self._lives_count > 1:
            self.application = self._field.application(
                f"{self.name}~{self._lives_count}", self.plan.application
            )
        if isinstance(self.application, DatabaseApplication):
            # Only the database outlives the process.
            self.application = application = self._field.application(
                self.name, self.plan.application
            )
            assert isinstance(application, DatabaseApplication)
            application.pass_statement = partial(self._pass_statement, host.disk)
        if self.plan.by_servers:
            host = replace(host, coordinator=cast(Coordinator, _NobodyThere()))
        await until_stopped(self._read(host) if self.plan.work == "read" else self._work(host))

    def _pass_statement(self, disk: Disk) -> None:
        """A database's statement counts as an operation on the disk: the process may die there."""
        assert isinstance(disk, SimulatedDisk)
        if disk.fault is not None:
            disk.fault(DiskOperation.WRITE, "database")

    @property
    def _servers(self) -> Sequence[Address]:
        return self._field.server_addresses if self.plan.by_servers else ()

    @property
    def _chosen(self) -> frozenset[PartitionId] | None:
        """The partitions to begin with, for a client that changes them; else None."""
        if not (self._waits and self._leaves):
            return None
        return frozenset(map(PartitionId, range(self._field.partition_count)))

    # Writing

    async def _work(self, host: Host) -> None:
        version = self._field.next_version(self.name)
        tells_name = self.plan.is_consumer or self.plan.is_named
        if tells_name and version >= LIFECYCLE_SINCE:
            self.application.instance = f"{self.name}#{self._lives_count}"
        options = ClientOptions(
            max_concurrent_transactions=self.plan.contexts_max,
            protocol_version_max=version,
            servers=self._servers,
            refresh_seconds=self.plan.refresh_seconds,
            partitions=self._chosen,
            name=self.name if tells_name else "",
            instance=self.application.instance,
            is_consumer=self.plan.is_consumer,
        )
        process, now = PROCESS.get(), asyncio.get_running_loop().time
        closes_at = now()
        try:
            async with AsyncWaltzClient(host, self.application, options) as client:
                try:
                    await self._use(client, leaves=options.partitions is not None)
                finally:
                    closes_at = now()
        finally:
            # A closed client has reported everything it had accepted, unless it had no time left,
            # as after a pause; contexts that waited for room never left. The contexts of a dead
            # process are finalized at some time, which says nothing.
            if not process.dead:
                is_late = now() >= closes_at + options.close_seconds_max
                self.application.history.abandon(
                    self.application.name,
                    ContextVerdict.LOST if is_late else ContextVerdict.UNWRITTEN,
                )

    async def _use(self, client: AsyncWaltzClient, *, leaves: bool) -> None:
        async with asyncio.TaskGroup() as group:
            if self._waits:
                waits = Waits(client, self.application, self._field.peace, self._waiting)
                group.create_task(waits.run(leaves=leaves))
            transfers = self._transfers(client)
            if transfers is not None:
                group.create_task(transfers.collect())
            await self._submit_all(client, transfers)
            await self._field.peace.wait()

    def _transfers(self, client: AsyncWaltzClient) -> Transfers | None:
        """Return the transfers of this life; None if the client makes none."""
        application, field = self.application, self._field
        if not isinstance(application, TransferApplication):
            return None
        random = Random(f"transfers {self._random.getrandbits(64)}")
        return Transfers(client, application, random, field.peace, field.client_count)

    def _start_transfer(self, group: asyncio.TaskGroup, transfers: Transfers) -> asyncio.Task[None]:
        transfer = transfers.draw()
        self._begun_count += 1
        self._transferring.add(transfer)
        making = group.create_task(transfers.make(transfer))

        def end(_: object) -> None:
            self._transferring.discard(transfer)
            self._field.progress.set()

        making.add_done_callback(end)
        return making

    async def _submit_all(self, client: AsyncWaltzClient, transfers: Transfers | None) -> None:
        room = asyncio.Semaphore(self.plan.concurrency)
        async with asyncio.TaskGroup() as group:
            for intent in self._of_last_life:
                group.create_task(self._ask(client, intent))
            while self._begun_count < self.plan.transactions:
                await room.acquire()
                if transfers is not None and self._random.random() < TIDE_SHARE:
                    await unless_peace(self._field.tide.wait(), self._field.peace)
                await asyncio.sleep(self._random.uniform(0.0, self.plan.think_seconds_max))
                if self.plan.work == "many":
                    bulk = self._draw_bulk(client.partition_count)
                    group.create_task(bulk.append(client)).add_done_callback(
                        lambda _: room.release()
                    )
                    continue
                if transfers is not None:
                    making = self._start_transfer(group, transfers)
                    making.add_done_callback(lambda _: room.release())
                    continue
                intent = draw_intent(
                    self._random,
                    self.application,
                    client.partition_count,
                    self.plan,
                    self._begun_count,
                )
                self._begun_count += 1
                self._intents.append(intent)
                submitting = group.create_task(submit(client, intent))
                if self._asking.random() < ASKED_SHARE:
                    group.create_task(self._ask(client, intent))
                submitting.add_done_callback(lambda _: room.release())

    def _draw_bulk(self, count: int) -> BulkCall:
        left = self.plan.transactions - self._begun_count
        bulk = BulkCall(self._random, self.application, count, self.plan, left)
        self._begun_count += len(bulk.numbers)
        return bulk

    async def _ask(self, client: AsyncWaltzClient, intent: Intent) -> None:
        """Ask for the outcome of the last attempt of `intent`, while it is under way or later."""
        await asyncio.sleep(self._asking.uniform(0.0, ASKED_SECONDS_MAX))
        request_id = intent.request_id
        if request_id is None:
            return
        history = self.application.history
        asking = asyncio.ensure_future(client.outcome(request_id, intent.executed_at))
        endless = EndlessWait(self.name, f"the outcome of context {intent.number}")
        if await is_told(asking, self._field.peace, history, endless):
            with suppress(WaltzError):  # closed, or a server that is too old to tell
                history.outcomes.append(OutcomeTold(self.name, request_id, asking.result()))

    # Reading

    async def _read(self, host: Host) -> None:
        """Follow all partitions, from the last position read, until there is peace."""
        async with (
            AsyncLogReader(host, servers=self._servers) as reader,
            asyncio.TaskGroup() as group,
        ):
            following: list[asyncio.Task[None]] = []

            def follow(count: int) -> None:
                following.extend(
                    group.create_task(self._follow(reader, PartitionId(number)))
                    for number in range(len(following), count)
                )

            follow(reader.partition_count)
            while self._field.grows and not self._field.peace.is_set():
                follow(reader.partition_count)
                await asyncio.sleep(LOOK_SECONDS)
            await self._field.peace.wait()
            for task in following:
                task.cancel()

    async def _follow(self, reader: AsyncLogReader, partition_id: PartitionId) -> None:
        while True:
            first = self.application.get_client_high_water_mark(partition_id) + 1
            try:
                async for columns in reader.follow(partition_id, first):
                    for fed in fed_in(columns):
                        self.application.take(partition_id, fed)
            except UnavailableError:  # nothing has come for a while
                pass
            except PermissionDeniedError:
                await asyncio.sleep(LOOK_SECONDS)


def fed_in(columns: TransactionColumns) -> list[FedRecord]:
    """Return the transactions of a run, one by one."""
    fed = []
    for position, data in enumerate(columns.data):
        identity = columns.request_ids[16 * position : 16 * position + 16]
        client, generation, partition, sequence = (
            int.from_bytes(identity[start : start + 4], "big", signed=True)
            for start in range(0, 16, 4)
        )
        fed.append(
            FedRecord(
                TransactionId(columns.first_transaction_id + position),
                RequestId(
                    ClientId(client), Generation(generation), PartitionId(partition), sequence
                ),
                int(columns.headers[position]),
                data,
            )
        )
    return fed
