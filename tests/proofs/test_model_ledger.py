"""What servers have said, and the first thing that contradicts it (I1 to I5)."""

from __future__ import annotations

import pytest

from proofs.model import ledger as ledgers
from proofs.model.ledger import Ledger, ViolationError, check_replicas
from proofs.model.replica import ModelReplica
from waltz.types import SessionId, TransactionId


def s(number: int) -> SessionId:
    return SessionId(number)


def t(number: int) -> TransactionId:
    return TransactionId(number)


def replica(*log: int, session: int = 0, mark: int = -1) -> ModelReplica:
    return ModelReplica(log, len(log), s(session), t(mark))


LOG = ledgers.committed(Ledger(), s(1), t(0), (7, 8))


def breaks(invariant: str) -> pytest.RaisesExc[ViolationError]:
    return pytest.raises(ViolationError, match=f"^{invariant}: ")


def test_commits_extend_the_log_and_may_be_repeated_by_others() -> None:
    assert LOG.committed == (7, 8)
    later = ledgers.committed(LOG, s(2), t(1), (8, 9))
    assert later.committed == (7, 8, 9)
    assert later.committed_by == (1, 1, 2)
    assert later.mark == 2


def test_a_mark_below_an_older_sessions_commit_loses_it() -> None:
    with breaks("I1"):
        ledgers.resolved(LOG, s(2), t(0))
    assert ledgers.resolved(LOG, s(2), t(1)).marks == ((2, 1),)
    assert ledgers.resolved(LOG, s(0), t(-1)).marks == ((0, -1),), "a stale session may say so"


def test_a_commit_after_a_later_session_resolved_without_it_is_lost() -> None:
    resolved = ledgers.resolved(LOG, s(3), t(1))
    with breaks("I1"):
        ledgers.committed(resolved, s(2), t(2), (9,))
    assert ledgers.committed(resolved, s(3), t(2), (9,)).committed == (7, 8, 9)


def test_two_records_with_one_id_are_a_fork() -> None:
    with breaks("I3"):
        ledgers.committed(LOG, s(2), t(1), (9,))


def test_a_gap_in_the_log_is_none_of_ours() -> None:
    with breaks("I4"):
        ledgers.committed(LOG, s(2), t(3), (9,))


def test_what_was_told_to_have_failed_stays_so() -> None:
    failed = ledgers.failed(LOG, (9,))
    with breaks("I5"):
        ledgers.committed(failed, s(2), t(2), (9,))
    with breaks("I5"):
        ledgers.failed(LOG, (8,))
    assert ledgers.failed(failed, (9, 4)).failed == (4, 9)


def test_a_session_opens_with_all_that_is_below_its_mark() -> None:
    held = replica(7, 8, 9, session=2)
    opened = ledgers.opened(LOG, s(2), t(2), [held, held])
    assert opened.committed == (7, 8, 9)
    with breaks("I1"):
        ledgers.opened(LOG, s(2), t(2), [held, replica(7, 8, session=2)])
    with breaks("I3"):
        ledgers.opened(LOG, s(2), t(1), [replica(7, 9, session=2)])


def test_one_that_lost_its_disk_since_is_not_asked() -> None:
    held, empty = replica(7, 8, 9, session=2), replica(session=-1)
    assert ledgers.opened(LOG, s(2), t(2), [held, empty]).mark == 2
    with breaks("I1"):
        ledgers.opened(LOG, s(2), t(2), [empty])


def test_enough_copies_are_left_of_everything_committed() -> None:
    check_replicas(LOG, [replica(7, 8), replica(7, 8, 5), replica(7)], 2)
    with breaks("I1"):
        check_replicas(LOG, [replica(7, 8), replica(7), replica(7, 9)], 2)
    check_replicas(LOG, [replica(7, 8), replica(), replica(7, 9)], 1)
    check_replicas(Ledger(), [replica(), replica(), replica()], 2)


def test_nothing_else_lies_below_a_low_water_mark() -> None:
    copies = [replica(7, 8), replica(7, 8)]
    check_replicas(LOG, [*copies, replica(7, 9, mark=0)], 2)
    with breaks("I2"):
        check_replicas(LOG, [*copies, replica(7, 9, mark=1)], 2)
