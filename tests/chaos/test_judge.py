"""What the judge of a chaos run has to find is planted, one thing at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.judge import Ledger
from tests.live.journal import Event, Step, encode_request, verdict_number
from tests.live.judge import Account
from waltz.sim.judges.history import ContextVerdict, FedRecord
from waltz.sim.judges.payload import Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

ZERO = PartitionId(0)


def request(number: int) -> RequestId:
    return RequestId(ClientId(3), Generation(1), ZERO, number)


def record(place: int, context: int, number: int) -> FedRecord:
    return FedRecord(TransactionId(place), request(number), 0, Payload(context, 1).encode())


def told(
    context: int,
    number: int,
    *,
    attempt: int = 1,
    endings: Sequence[ContextVerdict] = (ContextVerdict.COMMITTED,),
    place: int | None = None,
    outcomes: Sequence[tuple[int, int | None]] = (),
) -> Account:
    """The account of a client with one context, which was committed with that request; `outcomes`
    are what became of requests."""
    data = Payload(context, attempt).encode()
    account = Account()
    account.add(
        "a",
        ZERO,
        [
            Event(Step.SUBMITTED, context),
            Event(Step.ATTEMPTED, context, data=data),
            *(Event(Step.ENDED, context, detail=verdict_number(each)) for each in endings),
            *([] if place is None else [Event(Step.PLACED, context, data=b"%d" % place)]),
            Event(Step.REQUESTED, context, data=encode_request(request(number), -1)),
            *(Event(Step.ASKED, 0, data=encode_request(request(n), f)) for n, f in outcomes),
        ],
    )
    return account


def test_schedules_that_are_right_pass_and_are_counted() -> None:
    ledger = Ledger()
    asked = [(1, 0)]
    first = ledger.judge_schedule(told(1, 1, place=0, outcomes=asked), {ZERO: [record(0, 1, 1)]})
    second = ledger.judge_schedule(told(2, 2, outcomes=asked), {ZERO: [record(1, 2, 2)]})
    assert first == second == ledger.judge_all() == []
    assert (ledger.contexts, len(ledger.history.outcomes)) == (2, 2)
    assert ledger.verdicts["COMMITTED"] == 2
    assert [each for _, each, _ in ledger.committed] == [request(1), request(2)]


@pytest.mark.parametrize(
    ("account", "records", "sign"),
    [
        (told(1, 1), [], "I1 durability"),
        (told(1, 1, endings=[]), [record(0, 1, 1)], "I5 verdict"),
        (told(1, 1, endings=[ContextVerdict.COMMITTED] * 2), [record(0, 1, 1)], "I5 verdict"),
        (told(1, 1, endings=[ContextVerdict.UNWRITTEN]), [record(0, 1, 1)], "I5 verdict"),
        (told(1, 1), [record(0, 1, 1), record(1, 1, 2)], "I5 verdict"),
        (told(1, 1), [record(0, 1, 1), record(1, 1, 1)], "I6 at most once"),
        (told(1, 1, attempt=2), [record(0, 1, 1)], "I1 durability"),
        (told(1, 1, outcomes=[(1, None)]), [record(0, 1, 1)], "I13 outcome"),
        (told(1, 1, outcomes=[(2, 0)]), [record(0, 1, 1)], "I13 outcome"),
        (told(1, 1, place=5), [record(0, 1, 1)], "place"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_found(
    account: Account, records: list[FedRecord], sign: str
) -> None:
    violations = Ledger().judge_schedule(account, {ZERO: records})
    assert any(each.startswith(sign) for each in violations), violations


def test_what_comes_again_in_a_later_schedule_is_found() -> None:
    """A replay may wait."""
    ledger = Ledger()
    assert not ledger.judge_schedule(told(1, 1), {ZERO: [record(0, 1, 1)]})
    again = [record(1, 1, 1), record(2, 2, 2)]
    violations = ledger.judge_schedule(told(2, 2), {ZERO: again})
    assert any(each.startswith("I6 at most once") for each in violations)
    assert ledger.judge_all()


def test_a_context_that_ends_once_more_in_a_later_schedule_is_found() -> None:
    account = told(2, 2)
    account.add("a", ZERO, [Event(Step.ENDED, 1, detail=verdict_number(ContextVerdict.COMMITTED))])
    violations = Ledger().judge_schedule(account, {ZERO: [record(0, 2, 2)]})
    assert violations == ["I5 verdict: context 1 of a ended once more"]


def test_the_log_as_a_whole_is_judged_in_the_end() -> None:
    ledger = Ledger()
    assert not ledger.judge_schedule(told(1, 1), {ZERO: [record(1, 1, 1)]})
    assert any(each.startswith("I4 density") for each in ledger.judge_all())
