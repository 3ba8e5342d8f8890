"""Whether an attempt is a cut, by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from waltz.cluster.server_assignment import NO_ASSIGNMENT, PartitionAssignment
from waltz.operators.cut_attempt import CutAttempt
from waltz.types import Address, Generation, PartitionId, ServerId, SessionId, TransactionId
from waltz.wire.cut_protocol import (
    HeldPartition,
    HoldAnswer,
    HoldName,
    HoldReleaseAnswer,
    HoldTrouble,
)

P0, P1 = PartitionId(0), PartitionId(1)
A, B = Address("a", 1), Address("b", 1)


def held(partition_id: PartitionId, mark: int, generation: int = 1) -> HeldPartition:
    return HeldPartition(
        partition_id, Generation(generation), SessionId(4), TransactionId(mark), 10 + partition_id
    )


def assignment(*generations: int | None) -> PartitionAssignment:
    """Each partition has a server of its own; one without a generation has none."""
    servers: Mapping[ServerId, Mapping[PartitionId, Generation]] = {
        ServerId(number): {PartitionId(number): Generation(generation)}
        for number, generation in enumerate(generations)
        if generation is not None
    }
    return PartitionAssignment(1, len(generations), servers)


def attempt(
    by_a: Sequence[HeldPartition] = (held(P0, 7),),
    by_b: Sequence[HeldPartition] = (held(P1, -1),),
    owners: PartitionAssignment = assignment(1, 1),  # noqa: B008
) -> CutAttempt:
    """Both servers have answered, and the assignment was read."""
    found = CutAttempt()
    found.note_held(A, HoldAnswer(0, None, tuple(by_a), ()))
    found.note_held(B, HoldAnswer(0, None, tuple(by_b), ()))
    found.note_assignment(owners)
    return found


def release(found: CutAttempt) -> CutAttempt:
    for server in (A, B):
        found.note_released(server, HoldReleaseAnswer(0, found.holds_of(server), ()))
    return found


def test_holds_that_were_in_force_all_the_time_are_a_cut() -> None:
    found = attempt()
    assert found.marks() is None
    found = release(attempt())
    assert (found.marks(), found.obstacles) == ({P0: 7, P1: -1}, [])


def test_a_broken_hold_is_no_cut() -> None:
    found = attempt()
    found.note_released(A, HoldReleaseAnswer(0, found.holds_of(A), ()))
    found.note_released(B, HoldReleaseAnswer(0, (), (HoldTrouble(P1, "it was too slow"),)))
    assert found.marks() is None
    assert found.obstacles == ["the hold of partition 1 on b:1 was broken: it was too slow"]


def test_a_server_that_does_not_say_makes_no_cut() -> None:
    found = attempt()
    found.note_released(A, HoldReleaseAnswer(0, found.holds_of(A), ()))
    assert found.marks() is None
    assert found.obstacles == ["b:1 has not said whether it held partition 1"]


def test_the_word_of_another_server_does_not_count() -> None:
    found = attempt()
    names = (*found.holds_of(A), *found.holds_of(B))
    found.note_released(A, HoldReleaseAnswer(0, names, ()))
    assert found.marks() is None
    found = attempt()
    wrong = (HoldName(P1, 99),)
    found.note_released(A, HoldReleaseAnswer(0, found.holds_of(A), ()))
    found.note_released(B, HoldReleaseAnswer(0, wrong, ()))
    assert found.marks() is None


@pytest.mark.parametrize("generation", [0, 2])
def test_a_partition_that_has_moved_is_no_cut(generation: int) -> None:
    found = release(attempt(owners=assignment(1, generation)))
    assert found.marks() is None
    assert found.obstacles == [
        f"partition 1 has moved: it is at generation {generation}, and b:1 holds it at generation 1"
    ]


def test_of_two_servers_that_hold_a_partition_the_owner_counts() -> None:
    """The other has lost the partition and does not know it yet: its mark is an old one."""
    for by_a, by_b in (
        ((held(P0, 7), held(P1, 3)), (held(P1, 5, 2),)),
        ((held(P0, 7), held(P1, 5, 2)), (held(P1, 3),)),
    ):
        found = release(attempt(by_a, by_b, assignment(1, 2)))
        assert found.marks() == {P0: 7, P1: 5}
        assert {*found.holds_of(A), *found.holds_of(B)} == {HoldName(P0, 10), HoldName(P1, 11)}


def test_every_partition_has_to_be_held() -> None:
    found = release(attempt(by_b=()))
    assert found.marks() is None
    assert found.obstacles == ["partition 1 is not held by any server"]
    found = release(attempt(owners=assignment(1, None)))
    assert found.marks() is None
    assert found.obstacles == ["partition 1 has no server now"]
    found = release(attempt((), (), NO_ASSIGNMENT))
    assert found.marks() is None
    assert found.obstacles == ["no partition has a server yet"]


def test_the_words_of_a_server_are_told_and_cannot_move_a_cursor() -> None:
    found = CutAttempt()
    found.note_held(A, HoldAnswer(0, "no\x1b[2J", (), ()))
    found.note_held(B, HoldAnswer(0, None, (), (HoldTrouble(P1, "it\nstops"),)))
    found.note_failure(B, "no answer in 1 s")
    assert found.obstacles == [
        "server a:1 refuses: no\\x1b[2J",
        "partition 1 is not held by b:1: it\\nstops",
        "server b:1: no answer in 1 s",
    ]
    assert found.marks() is None
