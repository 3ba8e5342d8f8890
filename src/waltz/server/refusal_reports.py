"""The answers of a server about refused appends, from what its partitions remember."""

from __future__ import annotations

from waltz.server.appends.refusals import Refusals
from waltz.server.server_metrics import milliseconds
from waltz.wire.report_protocol import (
    REFUSALS_TOLD_MAX,
    HotLock,
    HotLocksReport,
    HotLocksRequest,
    RefusalEntry,
    RefusalsKept,
    RefusalsReport,
    RefusalsRequest,
)


def told_refusals(
    request: RefusalsRequest | HotLocksRequest, refusals: Refusals | None, now: float
) -> RefusalsReport | HotLocksReport:
    """Return the answer to `request`; `refusals` None: the partition is not this server's."""
    if isinstance(request, HotLocksRequest):
        return _hot_locks(request, refusals, now)
    if refusals is None:
        return RefusalsReport(request.request_number, None, ())
    found = refusals.latest(
        _bounded(request.count_max),
        winner=request.winner,
        loser=request.loser,
        lock_hash=request.lock_hash,
    )
    entries = tuple(
        RefusalEntry(
            each.request_id,
            each.lock.lock_hash,
            each.lock.winner,
            each.lock.is_exact,
            milliseconds(now - each.refused_at),
        )
        for each in found
    )
    return RefusalsReport(request.request_number, _kept(refusals, now), entries)


def _hot_locks(request: HotLocksRequest, refusals: Refusals | None, now: float) -> HotLocksReport:
    if refusals is None:
        return HotLocksReport(request.request_number, None, ())
    locks = tuple(
        HotLock(
            each.lock_hash,
            each.count,
            each.estimated_count,
            each.winner,
            milliseconds(now - each.refused_at),
        )
        for each in refusals.by_lock(_bounded(request.count_max))
    )
    return HotLocksReport(request.request_number, _kept(refusals, now), locks)


def _bounded(count_max: int) -> int:
    return min(max(count_max, 0), REFUSALS_TOLD_MAX)


def _kept(refusals: Refusals, now: float) -> RefusalsKept:
    oldest = refusals.oldest_at
    age = milliseconds(None if oldest is None else now - oldest)
    return RefusalsKept(refusals.count, refusals.kept, age)
