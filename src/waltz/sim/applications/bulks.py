"""Calls of `append_many` in a run: what they write, and what their caller learns.

Owns how each of their transactions ends in the history. Uses only the public names of the client.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any, Final

from waltz.arrays import np
from waltz.client.bulk import lock_hashes
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import WaltzError
from waltz.sim.applications.application import LOCK_NAME, Application
from waltz.sim.applications.workloads import KEYS, ClientPlan, draw_timeout
from waltz.sim.judges.history import ContextVerdict
from waltz.sim.judges.payload import Payload
from waltz.sim.loop import PROCESS
from waltz.types import NOTHING, PartitionId, TransactionId

ROWS_MAX: Final = 12
"""Transactions of one call."""

BLIND_LOCK_NAME: Final = "row"
"""The name of the locks of rows that are sent again unchanged, on any state. Payloads do not list
these locks: nothing depends on them."""


STATE_AGE_MAX: Final = 5
"""The state that rows depend on is less than this number of transactions old."""


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
        paddings = [
            random.randbytes(random.randrange(plan.padding_bytes_max + 1)) for _ in self.numbers
        ]
        self._headers = [header] * count
        keys = [random.randrange(KEYS * count) for _ in range(count)]
        is_locked = random.random() < 0.5
        # Not drawn, so that a seed from before this distinction draws what it did.
        depends_on_state = is_locked and self.numbers[0] % 2 == 1
        age = self.numbers[0] % STATE_AGE_MAX
        mark = max(NOTHING, TransactionId(application.applied_through(self._partition_id) - age))
        self._columns: dict[str, Any] = {}
        if is_locked:
            name = LOCK_NAME if depends_on_state else BLIND_LOCK_NAME
            self._columns["write_locks"] = lock_hashes(name, keys)
        if depends_on_state:
            self._columns["locks_as_of"] = mark
        self._data: list[bytes] = []
        for number, key, padding in zip(self.numbers, keys, paddings, strict=True):
            payload = Payload(number, 1, padding=padding)
            if depends_on_state:
                payload = replace(payload, mark=mark, write_locks=(key,))
            data = payload.encode()
            history.submissions[number].written.append((header, data))
            self._data.append(data)
        application.note("submit_many", application.name, self.numbers[0], count)

    async def append(self, client: AsyncWaltzClient) -> None:
        """Call, and return once it has ended, however."""
        try:
            ids = await client.append_many(
                self._partition_id,
                self._data,
                timeout_seconds=self._timeout_seconds,
                headers=self._headers,
                **self._columns,
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
            written = ids != NOTHING
            self._end(ContextVerdict.COMMITTED, rows=written)
            if "locks_as_of" in self._columns:
                self._end(ContextVerdict.UNWRITTEN, "refused", rows=~written)
            self._look_up(ids.tolist())

    def _end(self, verdict: ContextVerdict, text: str = "", rows: Any = ...) -> None:
        for number in np.array(self.numbers)[rows].tolist():
            self._application.note("end", number, verdict.name, text)
            self._application.history.end(number, verdict, text)

    def _look_up(self, ids: list[int]) -> None:
        """Check that the returned IDs are those of what was applied."""
        application = self._application
        feed = application.history.feed(application.name, self._partition_id)
        applied: dict[int, bytes] = {fed.transaction_id: fed.data for fed in feed}
        for number, data, transaction_id in zip(self.numbers, self._data, ids, strict=True):
            if transaction_id == NOTHING and "locks_as_of" in self._columns:
                continue
            if applied.get(transaction_id) != data:
                application.errors.append(
                    f"context {number} was reported as transaction {transaction_id} of partition"
                    f" {self._partition_id}; {application.name} has applied something else there"
                )
