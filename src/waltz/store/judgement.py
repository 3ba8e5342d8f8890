"""Judge the worth of a replica's word to a recovery, by the metadata and by that word.

Pure: no replica is asked, nothing is counted. `recovery.py` asks and counts, `repair_scope.py`
judges replicas that cannot vote as they would be judged if they could.
Source: Waltz Server, "Recovery Procedure", step 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState, last_session
from waltz.types import NO_SESSION, NOTHING, ReplicaId, TransactionId
from waltz.wire.storage_protocol import SessionInfo


class RecoveryStanding(Enum):
    """The worth of a replica's word in this recovery."""

    INCONSISTENT = "missed or lost what its last session wrote; cut to its own low-water mark"
    NEW = "no part of the last session; cut to its own low-water mark"
    CLOSED = "left before the last session; cut to the mark it was written off with"
    CANDIDATE = "as the last session left it"
    BEHIND = "holds less than its own low-water mark: a part of its log is lost"
    STALE = "no part of the last session, by its own word; cut once a majority keeps the log"
    UNKNOWN = "holds data of a partition that the metadata has never seen; left alone"


def judge(
    replica_id: ReplicaId, states: Mapping[ReplicaId, ReplicaState], info: SessionInfo
) -> tuple[RecoveryStanding, TransactionId | None]:
    """Return a replica's standing and what to cut it to; None: ask for its last transaction ID.

    A closed replica is cut to its closing mark. If it has got a low-water mark since the last
    session that took appends, from a recovery that went no further, it keeps what it has up to
    that: nobody has written anything else in its place. A mark that it has got in that session
    itself does not count: others hold all up to it, and it may be of another session that was
    given the same number before the coordinator was set back.
    One that was assigned while it could not be reached (closed, but of no session) may hold what
    nobody else ever had, from before it was once taken away: its own low-water mark counts too.
    Without any states, data on a node means that the metadata was lost, not the data.
    Source: Waltz Server, "Recovery Procedure", step 5.
    """
    if not states:
        found = info.low_water_mark > NOTHING
        return (RecoveryStanding.UNKNOWN if found else RecoveryStanding.CANDIDATE), None
    state = states.get(replica_id)
    if state is None:
        return RecoveryStanding.NEW, info.low_water_mark
    if info.session_id < state.session_id:
        return RecoveryStanding.INCONSISTENT, info.low_water_mark
    closing_mark = state.closing_high_water_mark
    if closing_mark is None:
        return RecoveryStanding.CANDIDATE, None
    if info.session_id > last_session(states):
        return RecoveryStanding.CLOSED, max(closing_mark, info.low_water_mark)
    if state.session_id == NO_SESSION:
        return RecoveryStanding.CLOSED, min(closing_mark, info.low_water_mark)
    return RecoveryStanding.CLOSED, closing_mark


def proves_set_back(
    metadata: PartitionMetadata, replica_id: ReplicaId, info: SessionInfo, last: TransactionId
) -> bool:
    """Return whether a replica's word proves that the session before that of `metadata` was open,
    which the replica states in `metadata` do not know.

    A low-water mark is set on a replica that holds nothing beyond it, and its session sends what
    lies beyond it once the metadata names the replica. So a replica that holds more was named by
    metadata that is newer. After an earlier session than the one before it proves nothing: a
    recovery in between may have copied to it, and gone no further.
    """
    states = metadata.replica_states
    return (
        replica_id in states
        and last_session(states) < info.session_id == metadata.session_id - 1
        and last > info.low_water_mark
    )


def has_joined_since(
    states: Mapping[ReplicaId, ReplicaState],
    replica_id: ReplicaId,
    info: SessionInfo,
    last: TransactionId,
) -> bool:
    """Return whether a replica that `states` call closed was in the last session all the same.

    A session sends a late replica what lies beyond its low-water mark once the metadata names it.
    If it does not, the coordinator was set back to a moment before that; or the mark was set, and
    records were copied by a recovery that went no further. They are records of that session
    either way, and may be what makes a majority: the replica votes with what it holds.
    """
    state = states.get(replica_id)
    return (
        state is not None
        and state.closing_high_water_mark is not None
        and info.session_id == last_session(states)
        and last > info.low_water_mark
    )
