"""Numbers that are passed over where the coordinator may have given them without knowing it.

Owns how many, and when servers have to. A coordinator that is made from an archive, or was set back
to an older state, has counted fewer clients, servers and generations than there have been.
"""

from __future__ import annotations

from typing import Final

from waltz.cluster.partition_metadata import SESSION_CLIMB, PartitionMetadata, is_set_back
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.errors import ConfigurationError
from waltz.types import Generation, PartitionId, SessionId

GENERATIONS_SKIPPED: Final = 1_000
"""Generations passed over: appends of former clients carry lower ones, and are refused."""

NUMBERS_DRAWN: Final = 2**20
"""Further IDs passed over, at most: a number below this is drawn each time that a coordinator was
set back. One backup may be put back twice, and the IDs above the first gap are used."""

GENERATIONS_RISEN: Final = GENERATIONS_SKIPPED // 2
"""A rise of a generation by at least this number tells a client that generations were passed over:
the client may have known of moves of a partition that the coordinator has forgotten."""

CLIENT_IDS_SKIPPED: Final = 1_000_000
"""Client IDs passed over: a client that lives on keeps its ID, which may have been given after the
coordinator's state was copied, and no other client may ever have it."""

SERVER_IDS_SKIPPED: Final = 1_000_000
"""Server IDs passed over, for the same reason."""

NUMBER_MAX: Final = 2**31 - 1
"""The highest ID of a client or server, and the highest generation: 32 bits, with a sign."""


def raised(number: int, skipped: int, what: str) -> int:
    """Return a number that nobody can have been given, where `number` is the highest one known.
    Raises ConfigurationError: there is none left."""
    if number > NUMBER_MAX - skipped:
        raise ConfigurationError(
            f"the cluster has given {what} up to {number}; the next ones begin {skipped} above, and"
            f" there are none beyond {NUMBER_MAX}"
        )
    return number + skipped


def shows_set_back(following: PartitionMetadata) -> bool:
    """Return whether a server that is about to open the session of `following` has to pass over
    numbers first: the session's number shows that the coordinator was set back, and the generation
    is too far below it for the numbers to have been passed over since.

    A session above NUMBER_MAX - SESSION_CLIMB shows nothing, as no generation can come up to it.
    """
    session_id = following.session_id
    if not is_set_back(following) or session_id > NUMBER_MAX - SESSION_CLIMB:
        return False
    return session_id - following.generation > SESSION_CLIMB // 2


def skipped_generations(
    assignment: PartitionAssignment,
    partition_id: PartitionId,
    generation: Generation,
    session_id: SessionId,
) -> PartitionAssignment | None:
    """Return the assignment with all generations raised, to `session_id` at least, which is above
    whatever was raised so before; None: this partition is not assigned under `generation` any more,
    so that somebody else has assigned it, or has raised them. Raises ConfigurationError: there are
    no generations left."""
    found = [held[partition_id] for held in assignment.servers.values() if partition_id in held]
    if found != [generation]:
        return None
    return PartitionAssignment(
        assignment.membership_version,
        assignment.partition_count,
        {
            server_id: {
                each: Generation(
                    max(
                        raised(last, GENERATIONS_SKIPPED, f"generations of partition {each}"),
                        session_id,
                    )
                )
                for each, last in held.items()
            }
            for server_id, held in assignment.servers.items()
        },
    )
