"""What tools show of a partition's replicas."""

from __future__ import annotations

from waltz.cli.replica_standing import UNASKED, count_current, counted, view_replicas
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import NEVER, PartitionReport, ReplicaEntry, Standing

A, B, C = (ReplicaId(f"{name}:1") for name in "abc")


def report(*replicas: ReplicaEntry) -> PartitionReport:
    head = (PartitionId(0), Generation(1), SessionId(1), TransactionId(1))
    return PartitionReport(*head, 0, "it waits", replicas)


def test_what_no_server_says_is_unknown() -> None:
    views = view_replicas([B, A], None)
    assert [(view.replica_id, view.standing) for view in views] == [(A, UNASKED), (B, UNASKED)]
    assert not any(view.is_current or view.is_fault for view in views)
    assert counted(views, is_asked=False) == "unknown"


def test_each_assigned_replica_is_shown_as_its_server_has_heard_it() -> None:
    views = view_replicas(
        [A, B, C],
        report(
            ReplicaEntry(A, Standing.CURRENT, 1, 20, "holds all"),
            ReplicaEntry(B, 99, -1, NEVER, "is of a later release"),
            ReplicaEntry(ReplicaId("guest:1"), Standing.CURRENT, 1, 0, "is not assigned"),
        ),
    )
    current, later, absent = views
    assert (current.is_current, current.answer_age_seconds) == (True, 0.02)
    assert (later.standing, later.takes_appends, later.answer_age_seconds) == (UNASKED, None, None)
    assert absent.is_fault
    assert absent.text == "takes no part in a store session: it waits"
    assert count_current(views) == 1
    assert counted(views, is_asked=True) == "1 of 3, 1 unknown"
    assert Standing.UNKNOWN.name.lower() == UNASKED, "one word for one thing"
