"""Which numbers are passed over, and when a server knows that it has to."""

from __future__ import annotations

import pytest

from waltz.cluster.partition_metadata import SESSION_CLIMB, PartitionMetadata
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
from waltz.types import Generation, PartitionId, ServerId, SessionId

ONE, TWO = PartitionId(0), PartitionId(1)
ASSIGNMENT = PartitionAssignment(
    7,
    3,
    {
        ServerId(3): {ONE: Generation(4), PartitionId(2): Generation(9)},
        ServerId(5): {TWO: Generation(1)},
    },
)


def opening(session: int, generation: int) -> PartitionMetadata:
    return PartitionMetadata(Generation(generation), SessionId(session), {})


def test_ids_that_come_to_their_end_are_refused() -> None:
    assert raised(NUMBER_MAX - 1000, 1000, "IDs") == NUMBER_MAX
    with pytest.raises(ConfigurationError, match="has given IDs up to"):
        raised(NUMBER_MAX - 999, 1000, "IDs")


@pytest.mark.parametrize(
    ("last", "session", "generation", "is_shown"),
    [
        (8, 9, 4, False),
        (8, 9, 5, False),
        (8, 12 + SESSION_CLIMB, 4, True),
        (8, 12 + SESSION_CLIMB, 5, True),
        (8, 12 + SESSION_CLIMB, 4 + GENERATIONS_SKIPPED - 1, True),
        (8, 12 + SESSION_CLIMB, 4 + GENERATIONS_SKIPPED, False),
        (8, 12 + SESSION_CLIMB, 4 + GENERATIONS_SKIPPED + 2, False),
    ],
)
def test_a_climb_shows_a_coordinator_that_was_set_back_until_its_generations_are_raised(
    last: int, session: int, generation: int, is_shown: bool
) -> None:
    following = opening(session, generation)
    assert shows_set_back(Generation(4), SessionId(last), following) == is_shown


def test_all_generations_are_raised_and_nothing_else_is_changed() -> None:
    skipped = skipped_generations(ASSIGNMENT, TWO, Generation(1), 7)
    assert skipped == PartitionAssignment(
        7,
        3,
        {
            ServerId(3): {ONE: Generation(1011), PartitionId(2): Generation(1016)},
            ServerId(5): {TWO: Generation(1008)},
        },
    )


@pytest.mark.parametrize("partition_id", [ONE, PartitionId(3)])
def test_generations_are_not_raised_for_a_partition_that_has_another_one(
    partition_id: PartitionId,
) -> None:
    assert skipped_generations(ASSIGNMENT, partition_id, Generation(1), 7) is None


def test_generations_that_come_to_their_end_are_refused() -> None:
    last = PartitionAssignment(7, 1, {ServerId(3): {ONE: Generation(NUMBER_MAX)}})
    with pytest.raises(ConfigurationError, match="generations of partition 0 up to 2147483647"):
        skipped_generations(last, ONE, Generation(NUMBER_MAX), 0)


def test_a_client_that_knows_of_hundreds_of_forgotten_moves_sees_the_rise() -> None:
    forgotten = 400
    assert GENERATIONS_SKIPPED - forgotten >= GENERATIONS_RISEN > 100
