"""Runs a relay: a client of the log on the one side, the application's database on the other.

Owns the waiting. What to do next is decided by `relay.py`. Database calls run on workers' threads;
each time the outbox is taken over, a client with an ID of its own is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import sqlalchemy as sql

from waltz import AsyncWaltzClient, ClientId, PartitionId, TransactionId
from waltz.errors import ConfigurationError, CorruptionError, HistoryChangedError, WaltzError
from waltz.host import Host
from waltz.machine_shell import Mailbox, run
from waltz.outbox.claim import RelayState
from waltz.outbox.claimed_rows import ClaimedRows, RowContext, RowOutcome
from waltz.outbox.outbox_row import OutboxRow, UnfitRow, WrittenRow, fitted
from waltz.outbox.outbox_tables import OutboxStore
from waltz.outbox.relay import (
    Append,
    Beat,
    Beaten,
    Confirm,
    Confirmed,
    Effect,
    Event,
    Failed,
    Follow,
    Followed,
    Look,
    Looked,
    NotTaken,
    Relay,
    Release,
    Released,
    Reset,
    RowLogged,
    RowRefused,
    Settle,
    Settled,
    Stand,
    Stood,
    StopAsked,
    Superseded,
    TakeOver,
    TookOver,
    WasReset,
)
from waltz.outbox.relay_metrics import RelayFigures

T = TypeVar("T")

log = logging.getLogger(__name__)

EVENTS_MAX: Final = 10_000
"""Events that may wait for the machine before tasks that cause more of them wait."""

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of data of the rows of one claim, unless a single row has more."""

FINAL_ERRORS: Final = (ConfigurationError, CorruptionError, HistoryChangedError)
"""Errors that no further attempt of this process can mend."""

OWN_REMEDY: Final = (
    "Nothing was appended. Compare the log with what the outbox has relayed, append what is"
    " missing, and delete the row of the table {table}, with which the relay starts anew: it sends"
    " all rows that the outbox has then"
)


OpenRelayClient = Callable[[ClaimedRows], AsyncWaltzClient]
"""Opens a client with these callbacks, that follows no partition, and keeps its ID."""


class RelayProcess:
    """Relays an outbox until it is stopped. Implements the methods of every kind of process."""

    def __init__(
        self,
        host: Host,
        store: OutboxStore,
        open_client: OpenRelayClient,
        machine: Relay,
        *,
        holder: str,
        rows_max: int,
        partition_count: int | None = None,
    ) -> None:
        """`holder` names this process, and no other one. `partition_count`: the partitions that
        keys are spread over; None: all that the cluster has when the outbox's first relay starts.
        """
        self.machine = machine
        self._host = host
        self._store = store
        self._open_client = open_client
        self._holder = holder
        self._rows_max = rows_max
        self._partition_count = partition_count
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, EVENTS_MAX)
        self._client: AsyncWaltzClient | None = None
        self._rows: ClaimedRows | None = None
        self._state: RelayState | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._done = asyncio.Event()
        self._last_success: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether a relay that runs once has relayed all that could be."""
        return self.machine.is_complete

    async def start(self) -> None:
        """Create the tables that are missing, if the database can be reached."""
        try:
            await self._blocking(self._store.create)
        except sql.exc.DBAPIError as error:
            # It may be away for now; every step asks it again.
            log.warning("outbox_failed step=create error=%s", error.orig)

    async def run(self) -> None:
        """Return once the machine has closed. Raises the error that no attempt can mend."""
        try:
            await run(self.machine, self._mailbox, self._host, self._perform)
        finally:
            await self._close_client()
            self._done.set()
        if self.machine.final_error is not None:
            raise ConfigurationError(self.machine.final_error)

    async def stop(self) -> None:
        """Have the machine close, and return once it has: rows under way have a few seconds; a
        later relay finds what is left."""
        self._mailbox.put(StopAsked())
        await self._done.wait()
        await self._end_tasks()

    def figures(self) -> RelayFigures:
        """Return what is known now, for metrics."""
        machine, state = self.machine, self._state
        return RelayFigures(
            outbox=self._store.tables.rows.name,
            cluster_key="" if state is None else str(state.cluster_key),
            doing=machine.phase.value,
            is_holder=machine.is_holder,
            relayed=machine.relayed,
            found=machine.found,
            parked=machine.parked,
            vanished=machine.vanished,
            under_way=machine.under_way,
            waiting=machine.waiting if machine.is_holder else None,
            failures=machine.failures,
            take_overs=machine.take_overs,
            last_success_milliseconds=self._last_success,
            trouble=machine.trouble,
        )

    # Effects

    def _perform(self, effect: Effect) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, effect: Effect) -> None:
        step = type(effect).__name__.lower()
        try:
            event = await self._outcome(effect)
        except FINAL_ERRORS as error:
            log.error("outbox_failed step=%s error=%s", step, error)
            event = Failed(str(error), is_final=True)
        except (WaltzError, sql.exc.SQLAlchemyError, OSError) as error:
            log.warning("outbox_failed step=%s error=%s", step, error)
            event = Failed(str(error))
        except Exception as error:
            log.exception("outbox_failed step=%s", step)
            event = Failed(repr(error))
        if event is not None:
            self._mailbox.put(event)

    async def _outcome(self, effect: Effect) -> Event | None:
        store = self._store
        match effect:
            case Stand():
                found = await self._blocking(store.standing)
                is_free = found.holder in (None, self._holder)
                return Stood(found.version, found.beat, is_free)
            case TakeOver(version):
                return await self._took_over(version)
            case Follow(partitions):
                return await self._followed(partitions)
            case Append(row):
                await self._append(row)
                return None
            case Confirm(row_id, partition_id):
                client, rows = self._opened()
                await client.wait_until_applied(partitions=[partition_id])
                return Confirmed(row_id, rows.is_logged(row_id))
            case Look(claimed):
                return await self._looked(claimed)
            case Settle():
                return await self._settled(effect)
            case Beat(version):
                waiting = await self._blocking(lambda: store.beat(version))
                return Superseded() if waiting is None else Beaten(waiting)
            case Reset():
                await self._end_tasks()
                await self._close_client()
                return WasReset()
            case Release(version):
                held = await self._blocking(lambda: store.release(version))
                log.info("outbox_released version=%d held=%s", version, held)
                return Released()

    async def _took_over(self, version: int) -> Event:
        await self._blocking(self._store.create)
        loop = asyncio.get_running_loop()
        rows: ClaimedRows

        def stop(error: Exception | None) -> None:
            loop.call_soon_threadsafe(self._rows_stopped, rows, error)

        rows = ClaimedRows(lambda: self._clients_of(rows), stop)
        client = self._open_client(rows)
        self._client, self._rows = client, rows
        await client.start()
        found = await self._blocking(self._store.standing)
        if found.version != version:
            await self._close_client()
            return NotTaken()
        key = client.cluster_key
        remedy = OWN_REMEDY.format(table=self._store.tables.relay.name)
        if found.state is None:
            count = self._partition_count or client.partition_count
            state = RelayState(self._host.random.uuid(), key, count)
        else:
            state = found.state
        wanted = self._partition_count or state.partition_count
        _check(state, key, wanted, client.partition_count, remedy)
        state = state.taken_over(client.client_id)
        if not await self._blocking(lambda: self._store.take_over(version, self._holder, state)):
            await self._close_client()
            return NotTaken()
        rows.begin(client.client_id, state)
        self._state = state
        claimed = [each.row_id for each in state.claim]
        written = await self._blocking(lambda: self._store.load(claimed))
        log.info(
            "outbox_taken_over outbox=%s version=%d client=%d claimed=%d",
            self._store.tables.rows.name, version + 1, client.client_id, len(claimed),
        )  # fmt: skip
        # A claimed row has fitted; one that does not any more was changed.
        return TookOver(version + 1, state, tuple(_as_row(each, state) for each in written))

    def _clients_of(self, rows: ClaimedRows) -> Collection[ClientId] | None:
        """Return the clients that the claim names now; None: another relay has taken over."""
        found = self._store.standing()
        if found.state is None or rows.client_id not in found.state.clients:
            return None
        is_last = found.state.clients[-1] == rows.client_id
        return found.state.clients if is_last else None

    def _rows_stopped(self, rows: ClaimedRows, error: Exception | None) -> None:
        if rows is not self._rows:
            return  # of a client that is closed
        if error is None:
            self._mailbox.put(Superseded())
            return
        log.warning("outbox_failed step=append error=%s", error)
        self._mailbox.put(Failed(str(error), is_final=isinstance(error, FINAL_ERRORS)))

    async def _followed(self, partitions: frozenset[PartitionId]) -> Event:
        client, rows = self._opened()
        await client.set_partitions({*client.active_partitions(), *partitions})
        await client.wait_until_applied(partitions=partitions)
        assert self._state is not None
        claimed = (each.row_id for each in self._state.claim)
        return Followed(frozenset(filter(rows.is_logged, claimed)))

    async def _append(self, row: OutboxRow) -> None:
        client, rows = self._opened()
        assert self._state is not None
        loop = asyncio.get_running_loop()

        def tell(outcome: RowOutcome) -> None:
            loop.call_soon_threadsafe(self._row_ended, rows, outcome)

        await client.submit(RowContext(row, self._state, rows, tell))

    def _row_ended(self, rows: ClaimedRows, outcome: RowOutcome) -> None:
        if rows is not self._rows:
            return
        row_id = outcome.row.row_id
        if outcome.refusal is None:
            self._mailbox.put(RowLogged(row_id))
        else:
            self._mailbox.put(RowRefused(row_id, outcome.refusal))

    async def _looked(self, claimed: frozenset[int]) -> Event:
        assert self._state is not None
        count = self._state.partition_count
        found = await self._blocking(
            lambda: self._store.look(claimed, self._rows_max, BATCH_BYTES_MAX)
        )
        fits = [fitted(each, count) for each in found]
        if not fits and not self.machine.under_way:
            self._last_success = self._host.clock.wall_milliseconds()
        return Looked(
            tuple(each for each in fits if isinstance(each, OutboxRow)),
            tuple(each for each in fits if isinstance(each, UnfitRow)),
        )

    async def _settled(self, effect: Settle) -> Event:
        client, rows = self._opened()
        # Read first: a restore in between makes the marks look too new, which stops the relay.
        history = client.histories.current
        active = client.active_partitions()
        marks = {each: TransactionId(client.client_high_water_mark(each)) for each in active}
        state = effect.state.claiming(effect.rows, marks, client.client_id, history)
        is_held = await self._blocking(
            partial(self._store.settle, effect.version, state, effect.relayed, effect.parked)
        )
        if not is_held:
            return Superseded()
        for each in effect.parked:
            log.warning(
                "outbox_row_parked row=%d key=%r reason=%s", each.row_id, each.key, each.reason
            )
        rows.begin(client.client_id, state)
        self._state = state
        return Settled(effect.version + 1, state)

    def _opened(self) -> tuple[AsyncWaltzClient, ClaimedRows]:
        assert self._client is not None, "taken over"
        assert self._rows is not None, "taken over"
        return self._client, self._rows

    async def _end_tasks(self) -> None:
        """End all other tasks, so that no answer comes to a question of before. A statement that
        has been sent may still be carried out: what it may do the version decides."""
        this = asyncio.current_task()
        others = [each for each in self._tasks if each is not this]
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _close_client(self) -> None:
        client, rows = self._client, self._rows
        self._client = self._rows = None
        if rows is not None:
            rows.is_stopped = True
        if client is not None:
            await client.close()

    async def _blocking(self, function: Callable[[], T]) -> T:
        return await self._host.workers.run_blocking(function)


def _check(state: RelayState, key: UUID, wanted: int, partition_count: int, remedy: str) -> None:
    """Compare the outbox's state with the cluster of `key`, which has `partition_count` partitions,
    and with the number of partitions that is asked for.

    Raises HistoryChangedError: the outbox goes to another cluster; ConfigurationError.
    """
    if state.cluster_key != key:
        raise HistoryChangedError(
            f"the outbox goes to cluster {state.cluster_key}, and cluster {key} answers. {remedy}"
        )
    if wanted != state.partition_count:
        raise ConfigurationError(
            f"the keys of the outbox are spread over {state.partition_count} partitions, and"
            f" {wanted} are asked for: rows of one key would be in two partitions, in no order"
        )
    if wanted > partition_count:
        raise ConfigurationError(
            f"the keys of the outbox are spread over {wanted} partitions; the cluster has"
            f" {partition_count}"
        )


def _as_row(written: WrittenRow, state: RelayState) -> OutboxRow:
    """Return a claimed row; one that does not fit any more has another digest than it had."""
    found = fitted(written, state.partition_count)
    if isinstance(found, OutboxRow):
        return found
    partition_ids = {each.row_id: each.partition_id for each in state.claim}
    return OutboxRow(written.row_id, written.key, partition_ids[written.row_id], 0, b"changed")
