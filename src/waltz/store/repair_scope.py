"""Find the records of a replica that are the log's, and can be read there or put back there.

Owns nothing: it joins what recovery, the session and the last answers about damage know. While the
mark is not known, what two replicas hold as the last session left them is the same where both hold
it, so that they can help each other to vote; once it is known, it alone says what is the log's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from waltz.cluster.partition_metadata import ReplicaState
from waltz.store.judgement import RecoveryStanding, has_joined_since, judge
from waltz.store.recovery import Recovery
from waltz.store.repairer import Repairer, RepairScope
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import Condition, ReplicaLink
from waltz.types import NOTHING, ReplicaId, TransactionId


def scopes(
    replicas: Iterable[ReplicaSession],
    states: Mapping[ReplicaId, ReplicaState],
    recovery: Recovery,
    repairer: Repairer,
    committed: TransactionId | None,
) -> dict[ReplicaId, RepairScope]:
    """Return the scope of each replica that can be asked now.

    states     of the last session, from the metadata.
    committed  the session's high-water mark; None while it is not open.
    """
    holdings = recovery.holdings
    found = {}
    for replica in replicas:
        match replica.phase:
            case ReplicaPhase.LIVE:
                found[replica.replica_id] = _of_live(replica, committed)
            case ReplicaPhase.RECOVERING:
                held = holdings.get(replica.replica_id, NOTHING)
                found[replica.replica_id] = RepairScope(replica.link, held, NOTHING, is_cut=False)
            case ReplicaPhase.ABSTAINING:
                # Where the metadata was set back nobody knows yet what is to be kept of it.
                condition = None if recovery.is_set_back else repairer.condition(replica.replica_id)
                found[replica.replica_id] = scope_of_abstaining(
                    replica.link, condition, states, recovery.high_water_mark
                )
            case (
                ReplicaPhase.CONNECTING
                | ReplicaPhase.EXCLUDED
                | ReplicaPhase.RETURNED
                | ReplicaPhase.RELEASED
            ):
                pass
    return found


def silent(
    replicas: Iterable[ReplicaSession],
    states: Mapping[ReplicaId, ReplicaState],
    recovery: Recovery,
    repairer: Repairer,
) -> tuple[ReplicaId, ...]:
    """Return the replicas, of this session and of the last one, that may have intact what others
    have damaged: those that have not said what they hold, or not whether it is damaged.

    Once the mark is known nobody is waited for: nothing is cut any more that could be needed.
    """
    if recovery.high_water_mark is not None:
        return ()
    holdings = recovery.holdings
    heard = {
        replica.replica_id
        for replica in replicas
        if (replica.phase is ReplicaPhase.RECOVERING and replica.replica_id in holdings)
        or (replica.phase is ReplicaPhase.ABSTAINING and repairer.has_answered(replica.replica_id))
    }
    everybody = dict.fromkeys([*states, *(replica.replica_id for replica in replicas)])
    return tuple(replica_id for replica_id in everybody if replica_id not in heard)


def _of_live(replica: ReplicaSession, committed: TransactionId | None) -> RepairScope:
    assert committed is not None
    assert replica.acknowledged_through is not None
    held = min(committed, replica.acknowledged_through)
    return RepairScope(replica.link, held, committed, is_cut=False)


def scope_of_abstaining(
    link: ReplicaLink,
    condition: Condition | None,
    states: Mapping[ReplicaId, ReplicaState],
    mark: TransactionId | None,
) -> RepairScope:
    """Judge a replica that cannot vote for damage as it would be judged if it could.

    Of one that is as the last session left it, all is kept until the mark is known. Of another one
    only what recovery would not cut away.
    """
    if condition is None or not states:
        return RepairScope(link, NOTHING, NOTHING, is_cut=False)
    info = condition.session_info
    standing, cut_to = judge(link.replica_id, states, info)
    if has_joined_since(states, link.replica_id, info, condition.last):
        standing = RecoveryStanding.CANDIDATE
    if standing is not RecoveryStanding.CANDIDATE:
        assert cut_to is not None
        kept = cut_to if mark is None else min(cut_to, mark)
        is_whole = condition.last >= condition.session_info.low_water_mark
        return RepairScope(
            link, min(kept, condition.last) if is_whole else NOTHING, kept, is_cut=True
        )
    kept = condition.last if mark is None else mark
    is_whole = condition.last >= info.low_water_mark
    held = min(kept, condition.last) if is_whole else NOTHING
    return RepairScope(link, held, kept, is_cut=mark is not None)
