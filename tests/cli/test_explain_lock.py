"""What is said of a lock: by value."""

from __future__ import annotations

from waltz.cli.explain_lock import LockFacts, lock_lines, lock_values
from waltz.client.transaction import PartitionLocalLock
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.report_protocol import RefusalEntry, RefusalsKept, RefusalsReport

P0 = PartitionId(0)
LOCK = PartitionLocalLock("account", 7)
LOSER = RequestId(ClientId(8), Generation(1), P0, 5)


def facts(*refusals: RefusalEntry) -> LockFacts:
    return LockFacts(P0, RefusalsReport(0, RefusalsKept(3, 3, 9_000), refusals))


def refusal(winner: int, *, is_exact: bool) -> RefusalEntry:
    return RefusalEntry(LOSER, LOCK.hash, TransactionId(winner), is_exact, 500)


def test_the_newest_refusal_says_who_set_the_lock_then_and_not_who_sets_it_now() -> None:
    found = facts(refusal(9, is_exact=True), refusal(4, is_exact=False))
    first, second, *each = lock_lines(LOCK, found)
    assert first == (
        "lock account:7 in partition 0: set by transaction 9 when it refused an append 0.5 s ago;"
        " whether it was set again since, nobody knows"
    )
    assert second == "refused     2 appends for this lock, as far as the server remembers"
    assert each == [
        "  8:1:0:5  winner 9, which wrote it, 0.5 s ago",
        "  8:1:0:5  winner 4, an estimate, 0.5 s ago",
    ]
    values = lock_values(found)
    assert (values["winner"], values["exact"], len(values["refused"])) == (9, True, 2)


def test_an_estimate_is_called_one() -> None:
    first, *_ = lock_lines(LOCK, facts(refusal(9, is_exact=False)))
    assert "it was set by transaction 9, by an earlier one, or by none" in first


def test_a_lock_that_refused_nothing_has_no_known_holder() -> None:
    (line,) = lock_lines(LOCK, facts())
    assert "unknown who set it: it is in none of the 3 refusals" in line
    assert lock_values(facts())["winner"] is None
    silent = LockFacts(P0, None, "partition 0 has no server now")
    assert lock_lines(LOCK, silent) == [
        "lock account:7 in partition 0: unknown: partition 0 has no server now"
    ]
    assert lock_values(silent)["refused"] is None
