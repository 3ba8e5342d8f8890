"""Calls of `append_many` in a run: what is written down of them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from waltz.client.bulk import lock_hashes
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import ClientClosedError, SubmitCancelledError
from waltz.sim.applications.application import LOCK_NAME, Application
from waltz.sim.applications.bulks import ROWS_MAX, BulkCall
from waltz.sim.applications.workloads import ClientPlan
from waltz.sim.judges.history import ContextVerdict, FedRecord, History
from waltz.sim.judges.payload import Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

PLAN = ClientPlan(work="many", transactions=100, padding_bytes_max=10)
REQUEST = RequestId(ClientId(1), Generation(1), PartitionId(0), 1)


class Log:
    """Takes rows and says where they are, `shift` beside the truth; or raises."""

    def __init__(
        self,
        user: Application,
        *,
        shift: int = 0,
        error: Exception | None = None,
        refuses: bool = False,
    ) -> None:
        self.user = user
        self.shift = shift
        self.error = error
        self.refuses = refuses
        self.columns: dict[str, Any] = {}

    async def append_many(
        self, partition_id: PartitionId, data: list[bytes], **columns: Any
    ) -> Any:
        self.columns = columns
        if self.error is not None:
            raise self.error
        if self.refuses:
            return np.full(len(data), -1)
        for each in data:
            mark = TransactionId(self.user.get_client_high_water_mark(partition_id) + 1)
            self.user.take(partition_id, FedRecord(mark, REQUEST, 0, each))
        return np.arange(len(data)) + self.shift


def application() -> Application:
    return Application("client", History(), RunTrace(), lambda: 0.0)


def called(bulk: BulkCall, log: Log) -> None:
    asyncio.run(bulk.append(cast(AsyncWaltzClient, log)))


def verdicts(user: Application) -> set[ContextVerdict]:
    submissions = user.history.submissions.values()
    return {ending.verdict for each in submissions for ending in each.endings}


@pytest.mark.parametrize("seed", range(20))
def test_equal_seeds_write_equal_rows_and_no_more_than_are_left(seed: int) -> None:
    one, other = application(), application()
    first = BulkCall(Random(seed), one, 3, PLAN, 5)
    BulkCall(Random(seed), other, 3, PLAN, 5)
    assert one.history.submissions == other.history.submissions
    assert 1 <= len(first.numbers) <= min(5, ROWS_MAX)
    for number in first.numbers:
        ((_, data),) = one.history.submissions[number].written
        payload = Payload.decode(data)
        assert payload is not None
        assert payload.context == number


def test_what_is_returned_is_looked_up_in_what_was_applied() -> None:
    user = application()
    called(BulkCall(Random(1), user, 1, PLAN, 9), Log(user))
    assert verdicts(user) == {ContextVerdict.COMMITTED}
    assert (user.errors, user.history.open_count("client")) == ([], 0)
    liar = application()
    called(BulkCall(Random(1), liar, 1, PLAN, 9), Log(liar, shift=1))
    assert "was reported as transaction 1 of partition 0" in liar.errors[0]


def test_rows_that_depend_on_a_state_tell_it_to_the_judge_and_end_unwritten_if_refused() -> None:
    kinds = set()
    for seed in range(9):
        user = application()
        bulk = BulkCall(Random(seed), user, 1, PLAN, 9)
        log = Log(user, refuses=True)
        called(bulk, log)
        payloads = [
            Payload.decode(data)
            for each in user.history.submissions.values()
            for _, data in each.written
        ]
        depends = "locks_as_of" in log.columns
        kinds.add(depends)
        if depends:
            keys = [key for each in payloads if each is not None for key in each.write_locks]
            assert lock_hashes(LOCK_NAME, keys).tolist() == log.columns["write_locks"].tolist()
            assert {each.mark for each in payloads if each} == {log.columns["locks_as_of"]}
            assert (verdicts(user), user.errors) == ({ContextVerdict.UNWRITTEN}, [])
        else:
            assert not any(each.write_locks for each in payloads if each is not None)
            assert user.errors, "rows that depend on nothing are all in the log"
    assert kinds == {False, True}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ClientClosedError("closed"), ContextVerdict.FAILED),
        (SubmitCancelledError("nothing was sent"), ContextVerdict.UNWRITTEN),
    ],
)
def test_what_it_raises_says_whether_rows_may_be_in_the_log(
    error: Exception, verdict: ContextVerdict
) -> None:
    user = application()
    called(BulkCall(Random(2), user, 1, PLAN, 9), Log(user, error=error))
    assert verdicts(user) == {verdict}
