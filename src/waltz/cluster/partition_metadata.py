"""One partition's entry in the coordinator: its generation, its store session, its replicas' marks.

Changed only by compare-and-set on the version last read; that fences servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from waltz.cluster.byte_layout import JAVA_TEXT, VERSION_1, Parts, entries
from waltz.errors import FencedError, RemoteProtocolError
from waltz.types import (
    NO_GENERATION,
    NO_SESSION,
    Generation,
    PartitionId,
    ReplicaId,
    SessionId,
    TransactionId,
)
from waltz.wire.fields import INT, LONG

SESSION_CLIMB: Final = 2**19
"""Session numbers that a server passes over when replicas have promised higher ones than the
coordinator knows: from this gap the next server, too, can tell that the coordinator was set back.
Failures alone would take six days to pass over that many, at one failed session per second."""

SESSION_CLIMB_MAX: Final = 2**62
"""No climb ends above this number: half of all numbers are left for sessions opened in order."""


_UNRESOLVED: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The last session that a replica took part in, and the high-water mark that it closed with.

    The mark is None while it is unresolved. Source: Waltz Server, "Recovery Procedure".
    """

    session_id: SessionId
    closing_high_water_mark: TransactionId | None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """`replica_states` has an entry for every replica that ever completed recovery."""

    generation: Generation
    session_id: SessionId
    replica_states: Mapping[ReplicaId, ReplicaState]

    @property
    def current_replicas(self) -> tuple[ReplicaId, ...]:
        """The replicas that take part in the last session."""
        return tuple(
            replica_id
            for replica_id, state in self.replica_states.items()
            if state.session_id == self.session_id
        )

    @property
    def counted_replicas(self) -> tuple[ReplicaId, ...]:
        """The replicas that the next recovery counts on: of the last session that took appends. A
        session that is still opening has no current replicas."""
        return tuple(
            replica_id
            for replica_id, state in self.replica_states.items()
            if state.closing_high_water_mark is None
        )

    LAYOUT = Parts(
        ("version", VERSION_1),
        ("generation", INT),
        ("session ID", LONG),
        (
            "replica states",
            entries(
                ("version", VERSION_1),
                ("replica ID version", VERSION_1),
                ("partition ID", INT),
                ("connect string", JAVA_TEXT),
                ("session ID", LONG),
                ("closing high-water mark, or -2^63", LONG),
            ),
        ),
    )

    def encode(self, partition_id: PartitionId) -> bytes:
        """Return the bytes of the node; each replica state repeats the partition's ID."""
        states = [
            (
                partition_id,
                replica_id,
                state.session_id,
                _UNRESOLVED
                if state.closing_high_water_mark is None
                else state.closing_high_water_mark,
            )
            for replica_id, state in self.replica_states.items()
        ]
        return self.LAYOUT.encode(self.generation, self.session_id, states)

    @classmethod
    def decode(cls, data: bytes, partition_id: PartitionId) -> PartitionMetadata:
        """Return the metadata in `data`. Raises RemoteProtocolError, also if a replica of another
        partition is named."""
        generation, session_id, states = cls.LAYOUT.decode(data)
        replica_states: dict[ReplicaId, ReplicaState] = {}
        for found_id, replica_id, replica_session_id, mark in states:
            if found_id != partition_id or replica_id in replica_states:
                raise RemoteProtocolError(
                    f"replica {found_id}@{replica_id} in the metadata of partition"
                    f" {partition_id}; expected each replica of this partition once"
                )
            replica_states[ReplicaId(replica_id)] = ReplicaState(
                SessionId(replica_session_id),
                None if mark == _UNRESOLVED else TransactionId(mark),
            )
        return cls(Generation(generation), SessionId(session_id), replica_states)


NEW_PARTITION: Final = PartitionMetadata(NO_GENERATION, NO_SESSION, {})
"""The metadata before a partition's first session."""


def next_session(
    metadata: PartitionMetadata, generation: Generation, beyond: SessionId | None = None
) -> PartitionMetadata:
    """Return the metadata that a server of `generation` writes to open the next store session.

    `beyond` is a session that replicas have promised and the coordinator may not know, because it
    was set back to an older state: the number is then so much higher that every server can tell
    (`is_set_back`).

    Raises FencedError: a server of a later generation has written.
    """
    if metadata.generation > generation:
        raise FencedError(
            f"generation {generation} has been replaced; the partition is at generation"
            f" {metadata.generation}, session {metadata.session_id}"
        )
    following = metadata.session_id + 1
    if beyond is not None and following <= beyond and may_climb(beyond):
        following = beyond + SESSION_CLIMB
    if generation - following >= SESSION_CLIMB // 2:
        # Another partition's session has raised the generation (docs/decisions/0060): replicas that
        # promise this number let the generation be found exceeded if the coordinator is set back.
        following = int(generation)
    return replace(metadata, generation=generation, session_id=SessionId(following))


def may_climb(beyond: SessionId) -> bool:
    """Return whether there are numbers for a climb above `beyond`."""
    return beyond <= SESSION_CLIMB_MAX - SESSION_CLIMB


def last_session(states: Mapping[ReplicaId, ReplicaState]) -> SessionId:
    """Return the last session that took appends, as far as `states` tell."""
    return max(
        (state.session_id for state in states.values() if state.closing_high_water_mark is None),
        default=NO_SESSION,
    )


def is_set_back(metadata: PartitionMetadata) -> bool:
    """Whether the coordinator was set back: the replica states are older than sessions that
    replicas have promised, so that nothing may be concluded from these states."""
    states = metadata.replica_states
    return bool(states) and metadata.session_id - last_session(states) >= SESSION_CLIMB
