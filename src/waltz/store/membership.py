"""Chooses the replicas of the next store session, when the assignment has changed.

Pure arithmetic on who took part in the last session, who is wanted, and who is known to hold the
log. Recovery counts votes of the last session's replicas only, and a session needs a majority of
its own replicas that hold everything. So a change that would replace too many at once is made in
two steps: the last session's replicas go on and the new ones are filled next to them, then the new
ones take over. Replicas taken away take part in the recovery in which they go, for their votes and
their records. Decision record 12 says why; hazard R4 is what the original does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from waltz.cluster.partition_metadata import ReplicaState
from waltz.majority import majority
from waltz.types import ReplicaId


@dataclass(frozen=True, slots=True)
class SessionMembers:
    """The replicas of one session.

    assigned  what the assignment asks for.
    members   whose majority recovers and commits, and whom the metadata will name.
    guests    others that are connected: of the last session, until this one is open; or assigned
              and to be filled, for as long as it lasts.
    is_change whether those assigned are not those of the last session.
    """

    assigned: tuple[ReplicaId, ...]
    members: tuple[ReplicaId, ...]
    guests: tuple[ReplicaId, ...]
    is_change: bool

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the change is left to do once the session is open."""
        return self.members == self.assigned

    def settled(self) -> SessionMembers:
        """Return what is left of a complete one once its session is open."""
        return SessionMembers(self.assigned, self.members, (), is_change=False)


def choose_members(
    states: Mapping[ReplicaId, ReplicaState],
    assigned: Sequence[ReplicaId],
    holders: Collection[ReplicaId] | None,
) -> SessionMembers:
    """Return who takes part in the session that follows the one that left `states`.

    holders  replicas known to hold the log, or nearly; None: those of the last session.
    """
    if holders is None:
        holders = [
            replica_id
            for replica_id, state in states.items()
            if state.closing_high_water_mark is None
        ]
    kept = sum(replica_id in holders for replica_id in assigned)
    can_open = kept >= majority(len(assigned))
    is_change = bool(states) and set(states) != set(assigned)
    if can_open or not is_change:
        removed = tuple(replica_id for replica_id in states if replica_id not in assigned)
        return SessionMembers(tuple(assigned), tuple(assigned), removed, is_change)
    added = tuple(replica_id for replica_id in assigned if replica_id not in states)
    return SessionMembers(tuple(assigned), tuple(states), added, is_change)
