"""The request IDs of a client in a partition: numbers that grow, to the last and no further."""

from __future__ import annotations

import pytest

from tests.client.partition_world import ME, OTHER, request
from waltz.client.appends.request_numbers import SEQUENCE_NUMBERS_PER_CLIENT_ID, RequestNumbers
from waltz.types import SEQUENCE_NUMBER_MAX, Generation, PartitionId

GENERATION = request(1).generation
LAST = SEQUENCE_NUMBERS_PER_CLIENT_ID


def numbers(last: int) -> RequestNumbers:
    return RequestNumbers(ME, PartitionId(2), last)


def test_appends_have_the_numbers_that_follow_until_none_is_left() -> None:
    made = numbers(LAST - 3)
    assert made.take(2, GENERATION) == request(LAST - 2)
    assert (made.last_id(GENERATION), made.left) == (request(LAST - 1), 1)
    with pytest.raises(AssertionError):
        made.take(2, GENERATION)


def test_a_mount_has_a_number_however_many_there_were() -> None:
    """Its request ID is in no log, so the last one may come again."""
    made = numbers(SEQUENCE_NUMBER_MAX - 1)
    assert made.left == 0
    assert [made.for_mount(GENERATION).sequence_number for _ in range(3)] == [
        SEQUENCE_NUMBER_MAX,
    ] * 3


def test_the_next_client_id_begins_with_the_first_number() -> None:
    made = numbers(LAST)
    assert made.last > made.renewal_after
    made.renew(OTHER)
    assert made.last < made.renewal_after
    assert made.take(1, Generation(7)) == request(1, client_id=OTHER)._replace(
        generation=Generation(7)
    )
