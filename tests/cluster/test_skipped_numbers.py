"""A server passes over numbers once a session shows that the coordinator was set back."""

from __future__ import annotations

import pytest

from waltz.cluster.partition_metadata import (
    SESSION_CLIMB,
    PartitionMetadata,
    ReplicaState,
    next_session,
)
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.skipped_numbers import (
    GENERATIONS_RISEN,
    GENERATIONS_SKIPPED,
    NUMBER_MAX,
    raised,
    shows_set_back,
    skipped_generations,
)
from waltz.errors import ConfigurationError
from waltz.types import Generation, PartitionId, ReplicaId, ServerId, SessionId

ONE, TWO = PartitionId(0), PartitionId(1)
ASSIGNMENT = PartitionAssignment(
    7,
    3,
    {
        ServerId(3): {ONE: Generation(4), PartitionId(2): Generation(9)},
        ServerId(5): {TWO: Generation(1)},
    },
)


SESSION = SessionId(12 + SESSION_CLIMB)


def opening(session: int, generation: int) -> PartitionMetadata:
    """Return what a server of `generation` writes to open a session above the eighth."""
    states = {ReplicaId("one"): ReplicaState(SessionId(8), None)}
    return PartitionMetadata(Generation(generation), SessionId(session), states)


def test_ids_that_come_to_their_end_are_refused() -> None:
    assert raised(NUMBER_MAX - 1000, 1000, "IDs") == NUMBER_MAX
    with pytest.raises(ConfigurationError, match="has given IDs up to"):
        raised(NUMBER_MAX - 999, 1000, "IDs")


@pytest.mark.parametrize(
    ("session", "generation", "is_shown"),
    [
        (9, 4, False),
        (SESSION, 4, True),
        (SESSION + 1, 5, True),
        (SESSION, 4 + GENERATIONS_SKIPPED, True),
        (SESSION, SESSION, False),
        (SESSION + 100, SESSION + 3, False),
        (2 * SESSION, SESSION + 3, True),
        (NUMBER_MAX - SESSION_CLIMB, 4, True),
        (NUMBER_MAX - SESSION_CLIMB + 1, 4, False),
    ],
)
def test_a_climb_shows_a_coordinator_that_was_set_back_until_its_generations_are_raised(
    session: int, generation: int, is_shown: bool
) -> None:
    assert shows_set_back(opening(session, generation)) == is_shown


def test_a_generation_that_was_raised_for_another_partition_takes_the_session_with_it() -> None:
    """Else this partition's next climb would end below generations that were used before."""
    before = opening(9, 4)
    assert next_session(before, Generation(SESSION + 2)).session_id == SESSION + 2
    assert next_session(before, Generation(5 + GENERATIONS_SKIPPED)).session_id == 10


def test_all_generations_are_raised_and_nothing_else_is_changed() -> None:
    skipped = skipped_generations(ASSIGNMENT, TWO, Generation(1), SessionId(1005))
    assert skipped == PartitionAssignment(
        7,
        3,
        {
            ServerId(3): {ONE: Generation(1005), PartitionId(2): Generation(1009)},
            ServerId(5): {TWO: Generation(1005)},
        },
    )


@pytest.mark.parametrize("partition_id", [ONE, PartitionId(3)])
def test_generations_are_not_raised_for_a_partition_that_has_another_one(
    partition_id: PartitionId,
) -> None:
    assert skipped_generations(ASSIGNMENT, partition_id, Generation(1), SESSION) is None


def test_generations_that_come_to_their_end_are_refused() -> None:
    last = PartitionAssignment(7, 1, {ServerId(3): {ONE: Generation(NUMBER_MAX)}})
    with pytest.raises(ConfigurationError, match="generations of partition 0 up to 2147483647"):
        skipped_generations(last, ONE, Generation(NUMBER_MAX), SESSION)


def test_a_client_that_knows_of_hundreds_of_forgotten_moves_sees_the_rise() -> None:
    forgotten = 400
    assert GENERATIONS_SKIPPED - forgotten >= GENERATIONS_RISEN > 100
