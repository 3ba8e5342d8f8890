"""The workloads come to the lines that they are there for.

A run that is clean says nothing of code that it never entered. So every workload that was made for
a part of the product is held to its marks: functions, and turns in them, that some of its runs must
come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from proofs.patches import Patch, patched
from tests.shares import one_in
from waltz.client.applying import calls
from waltz.client.databases.sql_callbacks import SqlCallbacks
from waltz.server.appends.claims import Claims
from waltz.server.appends.lock_table import LockTable
from waltz.server.feeding.feed_cache import FeedCache
from waltz.sim.judges.consumer_watch import ConsumerWatch
from waltz.sim.loop import ProcessKilled
from waltz.sim.simulation import simulate

SEEDS = range(87, 125)

Mark = Callable[[tuple[Any, ...], Any], str | None]
"""Names what a call has come to, from its arguments and its result; None: nothing."""


def _marks(reached: Counter[str], owner: Any, name: str, mark: Mark) -> Patch:
    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **more: Any) -> Any:
            try:
                result = original(*arguments, **more)
            except ProcessKilled as error:
                result = error
                raise
            finally:
                found = mark(arguments, locals().get("result"))
                if found is not None:
                    reached[found] += 1
            return result

        return called

    return Patch(owner, name, change)


def _grown(arguments: tuple[Any, ...], _: Any) -> str:
    claims, *_rest = arguments
    return "grows while locks are claimed" if claims.lock_count else "grows"


def _columns(arguments: tuple[Any, ...], result: Any) -> str | None:
    if not result.waiting:
        return "columns, nobody waits"
    return "columns, some wait and some are refused" if result.refused else "columns, some wait"


def _failed(arguments: tuple[Any, ...], result: Any) -> str | None:
    transactions, own = arguments[2], arguments[3]
    if result.last_transaction_id < transactions.first_transaction_id:
        return "postponed before the first"
    if result.last_transaction_id == transactions.last_transaction_id:
        return "postponed after the last"
    return "postponed in the middle, own contexts in it" if own else "postponed in the middle"


def _died(arguments: tuple[Any, ...], result: Any) -> str | None:
    if not isinstance(result, ProcessKilled):
        return {True: "applied", False: "another process was faster"}.get(result)
    return "died while it applied"


def _partial(arguments: tuple[Any, ...], _: Any) -> str | None:
    entry, first, count = arguments[2], arguments[3], arguments[4]
    if first != entry.batch.first_transaction_id:
        return "a cached batch is fed from its middle on"
    return "a cached batch is fed in part" if count < len(entry.batch) else None


def _told(arguments: tuple[Any, ...], _: Any) -> str:
    told = arguments[2]
    if told.lag is None:
        return "a lag is unknown"
    if not told.is_current:
        return "a consumer is away, and its lag has a bound"
    if told.lag.most_seconds is None:
        return "a lag has no upper bound"
    return "a consumer lags" if told.lag.least_seconds else "a consumer may be at the head"


WANTED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("many_locks", "slow_disk"): ("grows while locks are claimed",),
    ("crowd", "slow_disk"): ("columns, some wait", "one that waits holds up its followers"),
    ("postponing", "none"): (
        "postponed before the first",
        "postponed in the middle",
        "postponed in the middle, own contexts in it",
        "postponed after the last",
    ),
    ("postponing", "client_crash"): ("a cached batch is fed from its middle on",),
    ("database", "client_crash"): (
        "applied",
        "another process was faster",
        "died while it applied",
    ),
    ("consumers", "server_crash"): (
        "a mark is kept",
        "a lag is unknown",
        "a consumer is away, and its lag has a bound",
        "a lag has no upper bound",
        "a consumer lags",
        "a consumer may be at the head",
    ),
}


@pytest.mark.parametrize("scene", one_in(5, WANTED), ids=" ".join)
def test_a_workload_comes_to_what_it_is_for(scene: tuple[str, str]) -> None:
    """At the latest with the last seed; the others need not run then."""
    reached: Counter[str] = Counter()
    patches = (
        _marks(reached, Claims, "grow", _grown),
        _marks(reached, LockTable, "_admit_by_columns", _columns),
        _marks(
            reached,
            LockTable,
            "_queue_up",
            lambda arguments, found: "one that waits holds up its followers" if found else None,
        ),
        _marks(reached, calls, "_failed", _failed),
        _marks(reached, SqlCallbacks, "_change", _died),
        _marks(reached, FeedCache, "feed", _partial),
        _marks(reached, ConsumerWatch, "see_node", lambda *_: "a mark is kept"),
        _marks(reached, ConsumerWatch, "_check_lag", _told),
    )
    with patched(patches):
        for seed in SEEDS:
            assert simulate(seed, *scene).violations == ()
            if not {*WANTED[scene]} - {*reached}:
                return
    pytest.fail(f"only {reached}")


@pytest.mark.long
@pytest.mark.parametrize("scene", WANTED, ids=" ".join)
def test_all_seeds_of_such_a_workload_keep_every_promise(scene: tuple[str, str]) -> None:
    for seed in SEEDS:
        assert simulate(seed, *scene).violations == ()
