"""Counting: what a majority of replicas holds.

Pure arithmetic on marks. Who may vote, and who is absent, is decided in `recovery.py`. A replica
holding X holds everything up to X, so one number per replica is all there is to count.
Source: Waltz Server, "Quorum Checking in the Recovery Process".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waltz.majority import majority
from waltz.types import SessionId, TransactionId


def commit_mark(acknowledged: Iterable[TransactionId], quorum: int) -> TransactionId | None:
    """Return the highest transaction ID that `quorum` replicas have acknowledged.

    acknowledged  one mark per replica: it has synced everything up to it. Replicas that have not
                  acknowledged anything may be left out.

    None while fewer have acknowledged anything.
    """
    marks = sorted(acknowledged, reverse=True)
    return marks[quorum - 1] if len(marks) >= quorum else None


def last_opened(sessions: Sequence[SessionId], unknown_count: int, quorum: int) -> SessionId | None:
    """Return the latest session that can have been open, told by the replicas alone.

    sessions       the one that began last on each replica that has answered.
    unknown_count  replicas that have not answered, or have lost what they knew.

    A session opens only after it has begun on a majority, and what began on a replica only grows.
    None while the unknown ones could make it a later one.
    """
    if unknown_count >= quorum or len(sessions) < quorum:
        return None
    latest_first = sorted(sessions, reverse=True)
    found = latest_first[quorum - 1]
    return found if latest_first[quorum - 1 - unknown_count] == found else None


def resolve_high_water_mark(
    holdings: Sequence[TransactionId],
    absent_count: int,
    *,
    replica_count: int,
    vote_min: TransactionId | None,
    doubtful: Sequence[TransactionId] = (),
) -> TransactionId | None:
    """Return the highest mark that a majority of the last session's replicas holds.

    holdings       what is on each replica that has answered, whether it voted or caught up since.
    absent_count   replicas that have not answered and may hold anything.
    replica_count  replicas of the last session; the ones neither present nor absent hold nothing
                   that was written in it.
    vote_min       the smallest vote: what no vote stands for is not decided upon. None: no votes.
    doubtful       what is on replicas that lost a part of their log, as far as it is filled up
                   again. Such a replica supports what it holds, and may have acknowledged more.

    Marks are tried from the highest down. While those absent or in doubt could complete a majority
    for a mark, settling for a lower one might drop a transaction that a client was told is
    committed, so there is no answer yet (None): ask again when a replica returns or catches up.
    """
    quorum = majority(replica_count)
    if vote_min is None or absent_count + len(doubtful) >= quorum:
        return None
    for mark in sorted({*holdings, *doubtful}, reverse=True):
        if mark < vote_min:
            return None
        support = sum(held >= mark for held in holdings) + sum(held >= mark for held in doubtful)
        if support >= quorum:
            return mark
        if support + absent_count + sum(held < mark for held in doubtful) >= quorum:
            return None
    return None
