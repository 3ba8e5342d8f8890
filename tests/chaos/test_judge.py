"""What the judge of a chaos run has to find is planted, one thing at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.judge import Ledger
from waltz.sim.judges.history import Fed
from waltz.sim.judges.payload import Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

ZERO = PartitionId(0)


def request(number: int) -> RequestId:
    return RequestId(ClientId(3), Generation(1), ZERO, number)


def record(place: int, context: int, number: int) -> Fed:
    return Fed(TransactionId(place), request(number), 0, Payload(context, 1).encode())


def report(context: int, number: int, **changes: Any) -> dict[str, Any]:
    """The report of a client with one context, which was committed with that request."""
    found = {
        "number": context,
        "partition": 0,
        "written": [Payload(context, 1).encode().hex()],
        "endings": ["COMMITTED"],
        "place": None,
        "requests": [([*request(number)], -1)],
    }
    asked = changes.pop("outcomes", [])
    return {
        "gaps": changes.pop("gaps", []),
        "errors": [],
        "outcomes": asked,
        "contexts": [found | changes],
    }


def test_schedules_that_are_right_pass_and_are_counted() -> None:
    ledger = Ledger()
    asked = [([*request(1)], 0)]
    first = ledger.judge_schedule(
        {"a": report(1, 1, place=0, outcomes=asked)}, {ZERO: [record(0, 1, 1)]}
    )
    second = ledger.judge_schedule({"a": report(2, 2, outcomes=asked)}, {ZERO: [record(1, 2, 2)]})
    assert first == second == ledger.judge_all() == []
    assert (ledger.contexts, ledger.outcomes, ledger.verdicts["COMMITTED"]) == (2, 2, 2)
    assert [each for _, each, _ in ledger.committed] == [request(1), request(2)]


@pytest.mark.parametrize(
    ("told", "records", "sign"),
    [
        (report(1, 1), [], "I1 durability"),
        (report(1, 1, endings=[]), [record(0, 1, 1)], "I5 verdict"),
        (report(1, 1, endings=["COMMITTED"] * 2), [record(0, 1, 1)], "I5 verdict"),
        (report(1, 1, endings=["UNWRITTEN"]), [record(0, 1, 1)], "I5 verdict"),
        (report(1, 1), [record(0, 1, 1), record(1, 1, 2)], "I5 verdict"),
        (report(1, 1), [record(0, 1, 1), record(1, 1, 1)], "I6 at most once"),
        (report(1, 1, written=[Payload(1, 2).encode().hex()]), [record(0, 1, 1)], "I1 durability"),
        (report(1, 1, outcomes=[([*request(1)], None)]), [record(0, 1, 1)], "I13 outcome"),
        (report(1, 1, outcomes=[([*request(2)], 0)]), [record(0, 1, 1)], "I13 outcome"),
        (report(1, 1, place=5), [record(0, 1, 1)], "place"),
        (report(1, 1, gaps=["partition 0: 3 after 1"]), [record(0, 1, 1)], "gaps"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_found(
    told: dict[str, Any], records: list[Fed], sign: str
) -> None:
    violations = Ledger().judge_schedule({"a": told}, {ZERO: records})
    assert any(each.startswith(sign) for each in violations), violations


def test_what_comes_again_in_a_later_schedule_is_found() -> None:
    """A replay may wait."""
    ledger = Ledger()
    assert not ledger.judge_schedule({"a": report(1, 1)}, {ZERO: [record(0, 1, 1)]})
    again = [record(1, 1, 1), record(2, 2, 2)]
    violations = ledger.judge_schedule({"a": report(2, 2)}, {ZERO: again})
    assert any(each.startswith("I6 at most once") for each in violations)
    assert ledger.judge_all()


def test_the_log_as_a_whole_is_judged_in_the_end() -> None:
    ledger = Ledger()
    assert not ledger.judge_schedule({"a": report(1, 1)}, {ZERO: [record(1, 1, 1)]})
    assert any(each.startswith("I4 density") for each in ledger.judge_all())
