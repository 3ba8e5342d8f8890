"""What a server says of refused appends, from what its partition remembers."""

from __future__ import annotations

from tests.server.test_refusals import P3, loser, remember
from waltz.server.appends.refusals import Refusals, RefusingLock
from waltz.server.refusal_reports import told_refusals
from waltz.types import TransactionId
from waltz.wire.report_protocol import (
    NEVER,
    REFUSALS_TOLD_MAX,
    HotLock,
    HotLocksReport,
    HotLocksRequest,
    RefusalEntry,
    RefusalsKept,
    RefusalsReport,
    RefusalsRequest,
)


def test_a_server_says_what_its_partition_remembers_with_its_age() -> None:
    refusals = Refusals(2)
    asked = RefusalsRequest(5, P3, 10, None, None, None)
    hottest = HotLocksRequest(6, P3, 10)
    nothing = RefusalsKept(0, 0, NEVER)
    assert told_refusals(asked, refusals, 9.0) == RefusalsReport(5, nothing, ())
    assert told_refusals(hottest, refusals, 9.0) == HotLocksReport(6, nothing, ())
    remember(
        refusals,
        [[(n, RefusingLock(4, TransactionId(n), is_exact=n == 3))] for n in range(1, 4)],
    )
    kept = RefusalsKept(3, 2, 1500)
    assert told_refusals(asked, refusals, 3.5) == RefusalsReport(
        5,
        kept,
        (
            RefusalEntry(loser(3), 4, TransactionId(3), True, 500),
            RefusalEntry(loser(2), 4, TransactionId(2), False, 1500),
        ),
    )
    assert told_refusals(hottest, refusals, 3.5) == HotLocksReport(
        6, kept, (HotLock(4, 2, 1, TransactionId(3), 500),)
    )


def test_a_server_without_the_partition_says_so() -> None:
    asked = RefusalsRequest(5, P3, 10, None, None, None)
    assert told_refusals(asked, None, 0.0) == RefusalsReport(5, None, ())
    assert told_refusals(HotLocksRequest(6, P3, 1), None, 0.0) == HotLocksReport(6, None, ())


def test_an_answer_is_bounded_whatever_was_asked() -> None:
    refusals = Refusals()
    remember(refusals, [[(1, RefusingLock(n, TransactionId(0), True)) for n in range(1100)]])
    for count_max, told in ((2**31 - 1, REFUSALS_TOLD_MAX), (-(2**31), 0)):
        answer = told_refusals(RefusalsRequest(5, P3, count_max, None, None, None), refusals, 1.0)
        assert isinstance(answer, RefusalsReport)
        assert len(answer.refusals) == told
        locks = told_refusals(HotLocksRequest(5, P3, count_max), refusals, 1.0)
        assert isinstance(locks, HotLocksReport)
        assert len(locks.locks) == told
