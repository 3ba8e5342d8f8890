"""Transfers of money between partitions: a debit, and the credit once somebody has seen the debit.

Owns the two transactions of a transfer, and by which of a client's ways the debit is seen to be
committed before the credit is sent. A reader of the log up to a cut must never see a credit
without its debit; `judges/causality.py` judges that, and more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple

from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import WaltzError
from waltz.sim.applications.application import Application, Draft, Intent, submit
from waltz.sim.applications.waits import unless_peace
from waltz.sim.judges.history import ContextVerdict, FedRecord, History, OutcomeTold
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import NOTHING, PartitionId

ACCOUNTS: Final = 5
"""Accounts per partition."""

REFERENCE: Final = 255
"""The key under which a debit names the client that is to credit it, and a credit its debit."""

NOBODY_ELSE: Final = -1
"""The client that a debit names if its writer credits it."""

SIGHTS: Final = ("completion", "outcome", "mark", "other client")
"""The ways by which a debit is seen to be committed."""

LOOK_SECONDS_MAX: Final = 0.02
"""Between two looks at a mark or an outcome."""

LOOKS_MAX: Final = 100
"""Looks at one transfer; then its money stays under way."""


def client_number(name: str) -> int:
    """Return the number in the name of a client."""
    _, _, number = name.rpartition("-")
    return int(number)


class TransferApplication(Application):
    """Collects the debits that this client is to credit."""

    def __init__(
        self, name: str, history: History, trace: RunTrace, now: Callable[[], float]
    ) -> None:
        super().__init__(name, history, trace, now)
        self.collected: list[Payload] = []
        self.has_collected = asyncio.Event()
        self._number = client_number(name)

    def take(self, partition_id: PartitionId, fed: FedRecord) -> None:
        super().take(partition_id, fed)
        payload = Payload.decode(fed.data)
        if payload is None or payload.kind is not EntryKind.DEBIT:
            return
        if dict(payload.entries)[REFERENCE] == self._number:
            self.collected.append(payload)
            self.has_collected.set()


def amount_of(entries: tuple[tuple[int, int], ...]) -> int:
    """Return the money of a debit or a credit."""
    return next(amount for key, amount in entries if key != REFERENCE)


class Transfer(NamedTuple):
    """A debit, its money, and the way by which it is seen to be committed."""

    debit: Intent
    amount: int
    sight: str


class Transfers:
    """The transfers of one process of a client."""

    def __init__(
        self,
        client: AsyncWaltzClient,
        application: TransferApplication,
        random: Random,
        peace: asyncio.Event,
        client_count: int,
    ) -> None:
        self._client = client
        self._application = application
        self._random = random
        self._peace = peace
        self._client_count = client_count

    def draw(self) -> Transfer:
        random = self._random
        sight = random.choice(SIGHTS)
        collector = NOBODY_ELSE
        if sight == "other client":
            collector = random.randrange(self._client_count)
        account, amount = random.randrange(ACCOUNTS), random.randint(1, 80)
        locks = (account,) if random.random() < 0.5 else ()
        draft = Draft(
            EntryKind.DEBIT,
            write_locks=locks,
            entries=((account, amount), (REFERENCE, collector)),
        )
        debit = self._intent(random.randrange(self._client.partition_count), draft)
        return Transfer(debit, amount, sight)

    async def make(self, transfer: Transfer) -> None:
        """Write the debit and, once it was seen, the credit."""
        debit, amount, sight = transfer
        writing = asyncio.ensure_future(submit(self._client, debit))
        try:
            match sight:
                case "completion":
                    await writing
                    is_seen = debit.submission.has_ended(ContextVerdict.COMMITTED)
                case "outcome":
                    is_seen = await self._sees_outcome(debit)
                case "mark":
                    is_seen = await self._sees_mark(debit)
                case _:
                    is_seen = False
            if is_seen:
                await self._credit(debit.number, amount)
            await writing
        finally:
            writing.cancel()

    async def collect(self) -> None:
        """Credit the debits of others that name this client, until there is peace."""
        application = self._application
        async with asyncio.TaskGroup() as group:
            while not self._peace.is_set():
                await unless_peace(application.has_collected.wait(), self._peace)
                application.has_collected.clear()
                collected, application.collected[:] = application.collected[:], []
                for debit in collected:
                    group.create_task(self._credit(debit.context, amount_of(debit.entries)))

    async def _sees_outcome(self, debit: Intent) -> bool:
        history = self._application.history
        for _ in range(LOOKS_MAX):
            request_id = debit.request_id
            if request_id is not None:
                with suppress(WaltzError):  # too little time, or a server that is too old to tell
                    place = await self._client.outcome(request_id, debit.executed_at)
                    told = OutcomeTold(self._application.name, request_id, place)
                    history.outcomes.append(told)
                    if place is not None:
                        history.show(PartitionId(request_id.partition_id), place)
                        return True
            if debit.submission.endings:
                return False
            await asyncio.sleep(self._random.uniform(0.0, LOOK_SECONDS_MAX))
        return False

    async def _sees_mark(self, debit: Intent) -> bool:
        """Whether the log of the debit's partition has grown since the debit was executed."""
        partition_id = debit.submission.partition_id
        for _ in range(LOOKS_MAX):
            based_on = debit.submission.based_on
            if based_on:
                with suppress(WaltzError):  # no server has the partition now
                    mark = await self._client.get_high_water_mark(partition_id)
                    self._application.history.show(partition_id, mark)
                    if mark > based_on[-1].get(partition_id, NOTHING):
                        break  # but perhaps by another transaction
            if debit.submission.endings:
                break
            await asyncio.sleep(self._random.uniform(0.0, LOOK_SECONDS_MAX))
        return debit.submission.has_ended(ContextVerdict.COMMITTED)

    async def _credit(self, debit: int, amount: int) -> None:
        random = self._random
        entries = ((random.randrange(ACCOUNTS), amount), (REFERENCE, debit))
        draft = Draft(EntryKind.CREDIT, entries=entries)
        credit = self._intent(random.randrange(self._client.partition_count), draft)
        await submit(self._client, credit)

    def _intent(self, partition_number: int, draft: Draft) -> Intent:
        return Intent(
            self._application,
            PartitionId(partition_number),
            lambda application, partition_id: draft,
            header=0,
            padding=b"",
        )
