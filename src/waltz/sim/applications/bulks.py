"""Calls of `append_many` in a run: what they write, and what their caller learns.

Owns how each of their transactions ends in the history. Uses only the public names of the client.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from waltz.client.bulk import lock_hashes
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import WaltzError
from waltz.sim.applications.application import Application
from waltz.sim.applications.workloads import KEYS, ClientPlan, draw_timeout
from waltz.sim.judges.history import ContextVerdict
from waltz.sim.judges.payload import Payload
from waltz.sim.loop import PROCESS
from waltz.types import PartitionId

ROWS_MAX: Final = 12
"""Transactions of one call."""

LOCK_NAME: Final = "row"
"""The name of rows' locks. Payloads of rows do not list them: rows are sent again unchanged, on any
state."""


class BulkCall:
    """One call; its transactions have contexts of their own in the history."""

    def __init__(
        self,
        random: Random,
        application: Application,
        partition_count: int,
        plan: ClientPlan,
        rows_max: int,
    ) -> None:
        self._application = application
        self._partition_id = PartitionId(random.randrange(partition_count))
        count = random.randint(1, min(ROWS_MAX, rows_max))
        header = random.choice((0, random.randrange(-(2**31), 2**31)))
        self._timeout_seconds = draw_timeout(random, plan)
        history = application.history
        self.numbers = [history.submit(application.name, self._partition_id) for _ in range(count)]
        self._data: list[bytes] = []
        for number in self.numbers:
            padding = random.randbytes(random.randrange(plan.padding_bytes_max + 1))
            data = Payload(number, 1, padding=padding).encode()
            history.submissions[number].written.append((header, data))
            self._data.append(data)
        self._headers = [header] * count
        keys = [random.randrange(KEYS * count) for _ in range(count)]
        self._locks = lock_hashes(LOCK_NAME, keys) if random.random() < 0.5 else None
        application.note("submit_many", application.name, self.numbers[0], count)

    async def append(self, client: AsyncWaltzClient) -> None:
        """Call, and return once it has ended, however."""
        columns = {} if self._locks is None else {"write_locks": self._locks}
        try:
            ids = await client.append_many(
                self._partition_id,
                self._data,
                timeout_seconds=self._timeout_seconds,
                headers=self._headers,
                **columns,
            )
        except WaltzError as error:
            self._end(
                ContextVerdict.FAILED if error.may_be_written else ContextVerdict.UNWRITTEN,
                repr(error),
            )
        except asyncio.CancelledError:
            if not PROCESS.get().dead:  # otherwise the history has them as unknown already
                self._end(ContextVerdict.FAILED, "cancelled")
            raise
        else:
            self._end(ContextVerdict.COMMITTED)
            self._look_up(ids.tolist())

    def _end(self, verdict: ContextVerdict, text: str = "") -> None:
        for number in self.numbers:
            self._application.note("end", number, verdict.name, text)
            self._application.history.end(number, verdict, text)

    def _look_up(self, ids: list[int]) -> None:
        """Check that the returned IDs are those of what was applied."""
        application = self._application
        feed = application.history.feed(application.name, self._partition_id)
        applied: dict[int, bytes] = {fed.transaction_id: fed.data for fed in feed}
        for number, data, transaction_id in zip(self.numbers, self._data, ids, strict=True):
            if applied.get(transaction_id) != data:
                application.errors.append(
                    f"context {number} was reported as transaction {transaction_id} of partition"
                    f" {self._partition_id}; {application.name} has applied something else there"
                )
