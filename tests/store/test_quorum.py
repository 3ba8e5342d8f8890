from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from waltz.majority import majority
from waltz.store.quorum import commit_mark, last_opened, resolve_high_water_mark
from waltz.types import NOTHING, SessionId, TransactionId


def marks(*values: int) -> list[TransactionId]:
    return [TransactionId(value) for value in values]


def resolve(
    holdings: tuple[int, ...], absent_count: int, doubtful: tuple[int, ...] = ()
) -> TransactionId | None:
    return resolve_high_water_mark(
        marks(*holdings),
        absent_count,
        replica_count=len(holdings) + absent_count + len(doubtful),
        vote_min=min(marks(*holdings), default=None),
        doubtful=marks(*doubtful),
    )


@pytest.mark.parametrize(
    ("replica_count", "quorum"),
    [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (8, 5), (9, 5)],
)
def test_a_majority_is_more_than_half(replica_count: int, quorum: int) -> None:
    """ST-12, ST-22."""
    assert majority(replica_count) == quorum


def test_the_commit_mark_is_what_a_majority_has_acknowledged() -> None:
    """ST-02. The definition, over all small cases."""
    for replica_count in range(1, 6):
        for known_count in range(replica_count + 1):
            for acknowledged in product(range(-1, 4), repeat=known_count):
                holders = [sum(value >= mark for value in acknowledged) for mark in range(-1, 5)]
                wanted = [
                    mark
                    for mark, count in zip(range(-1, 5), holders, strict=True)
                    if count >= replica_count // 2 + 1
                ]
                found = commit_mark(marks(*acknowledged), majority(replica_count))
                assert found == (max(wanted) if wanted else None)


def what_a_majority_holds(everything: tuple[int, ...]) -> int:
    return sorted(everything, reverse=True)[majority(len(everything)) - 1]


def test_a_mark_is_returned_exactly_when_no_absent_replica_could_change_it() -> None:
    """ST-29, ST-30. Over all cases of up to five replicas with logs that are not empty."""
    case_count = 0
    for replica_count in range(1, 6):
        for present_count in range(1, replica_count + 1):
            absent_count = replica_count - present_count
            for present in combinations_with_replacement(range(5), present_count):
                possible = {
                    what_a_majority_holds(present + absent)
                    for absent in combinations_with_replacement(range(-1, 7), absent_count)
                }
                answer = resolve(present, absent_count)
                assert answer == (possible.pop() if len(possible) == 1 else None)
                case_count += 1
    assert case_count > 400


def test_doubt_never_lowers_the_mark() -> None:
    """I11: whatever a replica that lost records has once acknowledged, the answer holds it."""
    for replica_count in range(2, 6):
        for doubtful_count in range(1, replica_count):
            for absent_count in range(replica_count - doubtful_count):
                present_count = replica_count - doubtful_count - absent_count
                for present in combinations_with_replacement(range(4), present_count):
                    for doubtful in combinations_with_replacement(range(-1, 4), doubtful_count):
                        check_doubtful(present, absent_count, doubtful)


def check_doubtful(present: tuple[int, ...], absent_count: int, doubtful: tuple[int, ...]) -> None:
    answer = resolve(present, absent_count, doubtful)
    if answer is None:
        return
    worst = present + (9,) * (absent_count + len(doubtful))
    assert answer >= what_a_majority_holds(worst), (present, absent_count, doubtful)
    holders = sum(held >= answer for held in present + doubtful)
    assert holders >= majority(len(worst))


@pytest.mark.parametrize(
    ("holdings", "absent_count", "answer"),
    [
        ((5, 7, 3), 0, 5),
        ((5, 3), 1, None),
        ((5, 5), 1, 5),
        ((125,), 2, None),
        ((120, 120), 1, 120),
        ((125, 125, 120, 115, 115), 0, 120),
        ((-1, -1), 1, -1),
        ((4,), 0, 4),
    ],
)
def test_the_examples_of_the_document(
    holdings: tuple[int, ...], absent_count: int, answer: int | None
) -> None:
    """ST-29, ST-30, Waltz Server, "Quorum Checking in the Recovery Process"."""
    assert resolve(holdings, absent_count) == answer


def test_nothing_is_decided_without_a_vote_or_below_the_smallest() -> None:
    holdings = marks(3, 3, 9)
    for vote_min, answer in ((None, None), (9, None), (4, None), (3, 3)):
        found = resolve_high_water_mark(
            holdings,
            0,
            replica_count=3,
            vote_min=None if vote_min is None else TransactionId(vote_min),
        )
        assert found == answer


def test_empty_logs_resolve_to_nothing() -> None:
    assert resolve((-1, -1, -1), 0) == NOTHING


@pytest.mark.parametrize(
    ("sessions", "unknown", "expected"),
    [
        ((9, 9, 9), 0, 9),
        ((9, 9, 5), 0, 9),
        ((12, 9, 9), 0, 9),
        ((12, 9, 5), 0, 9),
        ((9, 9), 1, 9),
        ((12, 9), 1, None),
        ((9, 5), 1, None),
        ((9,), 2, None),
        ((), 3, None),
        ((9, 7, 5), 2, None),
        ((9, 9, 9), 2, 9),
    ],
)
def test_the_last_open_session_is_one_that_began_on_a_majority(
    sessions: tuple[int, ...], unknown: int, expected: int | None
) -> None:
    count = len(sessions) + unknown
    found = last_opened([SessionId(each) for each in sessions], unknown, majority(count))
    assert found == expected
