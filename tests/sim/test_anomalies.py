"""Every anomaly is found by its name from what users saw alone; a clean history has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from waltz.sim.judges.anomalies import check_anomalies
from waltz.sim.judges.history import (
    ContextVerdict,
    Ending,
    EndlessWait,
    FedRecord,
    History,
    WaitTold,
)
from waltz.sim.judges.payload import Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)


def fed(transaction_id: int, context: int, attempt: int = 1) -> FedRecord:
    request_id = RequestId(ClientId(1), Generation(1), P, 10 * context + attempt)
    return FedRecord(
        TransactionId(transaction_id), request_id, 0, Payload(context, attempt).encode()
    )


def clean() -> History:
    """Four contexts, one after the other, all committed, seen by two followers."""
    history = History()
    for context in (1, 2, 3, 4):
        assert history.submit("a", P) == context
        history.end(context, ContextVerdict.COMMITTED)
    for follower in ("a", "b"):
        history.feed(follower, P).extend(fed(number, number + 1) for number in range(4))
    before, mark = TransactionId(2), TransactionId(3)
    history.waits.append(WaitTold("b", {P: mark}, {P: before}, {P: mark}))
    return history


def test_a_clean_history_has_no_anomaly() -> None:
    assert check_anomalies(clean()) == []


def test_who_has_seen_only_a_part_has_lost_nothing() -> None:
    history = clean()
    del history.feed("b", P)[2:]
    assert check_anomalies(history) == []


def skip(history: History) -> None:
    del history.feed("b", P)[1]


def go_back(history: History) -> None:
    history.feed("b", P).append(fed(1, 2))


def hand_over_twice(history: History) -> None:
    history.feed("b", P).append(fed(3, 4))


def see_another(history: History) -> None:
    history.feed("b", P)[1] = fed(1, 2, attempt=2)


def repeat_a_context(history: History) -> None:
    for follower in ("a", "b"):
        history.feed(follower, P).append(fed(4, 1, attempt=2))


def lose_for_everybody(history: History) -> None:
    for follower in ("a", "b"):
        history.feed(follower, P).pop()


def lose_for_one(history: History) -> None:
    history.feed("b", P)[1] = fed(1, 9)


def show_what_was_refused(history: History) -> None:
    history.submissions[2].endings[:] = [Ending(ContextVerdict.REFUSED, 4)]


def show_what_was_said_to_be_unwritten(history: History) -> None:
    history.submissions[2].endings[:] = [Ending(ContextVerdict.UNWRITTEN, 4)]


def swap(history: History) -> None:
    for follower in ("a", "b"):
        history.feed(follower, P)[1:3] = [fed(1, 3), fed(2, 2)]


def return_early(history: History) -> None:
    history.waits[0] = history.waits[0]._replace(after={P: TransactionId(2)})


def return_what_was_true_before(history: History) -> None:
    history.waits[0] = history.waits[0]._replace(told={P: TransactionId(1)})


def never_return(history: History) -> None:
    history.endless.append(EndlessWait("b", "that it has applied all"))


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (skip, "poll skip"),
        (go_back, "non-monotonic poll"),
        (hand_over_twice, "non-monotonic poll"),
        (see_another, "inconsistent offset"),
        (repeat_a_context, "duplicate"),
        (lose_for_everybody, "lost write"),
        (lose_for_one, "lost write"),
        (show_what_was_refused, "aborted read"),
        (show_what_was_said_to_be_unwritten, "aborted read"),
        (swap, "wrong order"),
        (return_early, "early return"),
        (return_what_was_true_before, "stale mark"),
        (never_return, "endless wait"),
    ],
)
def test_every_anomaly_is_found(spoil: Callable[[History], None], name: str) -> None:
    history = clean()
    spoil(history)
    assert any(violation.startswith(f"{name}: ") for violation in check_anomalies(history))


def test_contexts_that_were_under_way_together_may_be_in_any_order() -> None:
    history = History()
    for context in (1, 2):
        assert history.submit("a", P) == context
    for context in (1, 2):
        history.end(context, ContextVerdict.COMMITTED)
    history.feed("a", P).extend([fed(0, 2), fed(1, 1)])
    assert check_anomalies(history) == []
