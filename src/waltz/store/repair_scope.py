"""Which records of which replica are the log's, so that they can be read there or put back there.

Owns nothing: it joins what recovery, the session and the last answers about damage know. While the
mark is not known, what two replicas hold as the last session left them is the same where both hold
it, so that they can help each other to vote; once it is known, it alone says what is the log's.
"""

from __future__ import annotations

from collections.abc import Iterable

from waltz.store.recovery import Recovery
from waltz.store.repairer import Repairer, Scope
from waltz.store.replica_session import Phase, ReplicaSession
from waltz.types import NOTHING, ReplicaId, TransactionId


def scopes(
    replicas: Iterable[ReplicaSession],
    recovery: Recovery,
    repairer: Repairer,
    committed: TransactionId | None,
) -> dict[ReplicaId, Scope]:
    """Return the scope of each replica that can be asked now.

    committed  the session's high-water mark; None while it is not open.
    """
    votes = recovery.votes
    found = {}
    for replica in replicas:
        match replica.phase:
            case Phase.LIVE:
                found[replica.replica_id] = _of_live(replica, committed)
            case Phase.RECOVERING:
                held = votes.get(replica.replica_id, NOTHING)
                found[replica.replica_id] = Scope(replica.link, held, NOTHING, is_cut=False)
            case Phase.ABSTAINING:
                found[replica.replica_id] = _of_abstaining(replica, recovery, repairer)
            case Phase.CONNECTING | Phase.EXCLUDED:
                pass
    return found


def _of_live(replica: ReplicaSession, committed: TransactionId | None) -> Scope:
    assert committed is not None
    assert replica.acknowledged_through is not None
    held = min(committed, replica.acknowledged_through)
    return Scope(replica.link, held, committed, is_cut=False)


def _of_abstaining(replica: ReplicaSession, recovery: Recovery, repairer: Repairer) -> Scope:
    condition = repairer.condition(replica.replica_id)
    if condition is None:
        return Scope(replica.link, NOTHING, NOTHING, is_cut=False)
    judged = recovery.judged(replica.replica_id, condition.session_info, condition.last)
    held = min(judged.kept_through, condition.last) if judged.vouches else NOTHING
    return Scope(replica.link, held, judged.kept_through, judged.is_cut)
