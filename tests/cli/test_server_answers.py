"""What servers have said, and what follows from it for replicas."""

from __future__ import annotations

from waltz.cli.server_answers import ServerAnswers, lost_replicas
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import PartitionReport, ReplicaEntry, Standing

ZERO, ONE = map(PartitionId, range(2))


def test_what_a_partition_cannot_count_on_is_what_its_own_server_says() -> None:
    """F-5: commands that take a replica away refuse it by what is so, not by the metadata."""
    replicas = tuple(
        ReplicaEntry(ReplicaId(name), standing, -1, 10, "is so")
        for name, standing in (
            ("a:1", Standing.CURRENT),
            ("b:1", Standing.REFUSING),
            ("c:1", Standing.UNKNOWN),
            ("d:1", Standing.SILENT),
        )
    )
    head = (ZERO, Generation(1), SessionId(1), TransactionId(1))
    report = PartitionReport(*head, 1, None, replicas)
    said = ServerAnswers(None, reaches={"a:1": True, "e:1": False}, reports={ZERO: report})
    old = ServerAnswers(None, reaches={"a:1": True})
    assert lost_replicas([ZERO, ONE], [said, old, ServerAnswers("gone")]) == {
        ZERO: {"b:1", "d:1", "e:1"},
        ONE: {"e:1"},
    }
