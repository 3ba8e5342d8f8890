"""What servers have said, and what follows from it for replicas."""

from __future__ import annotations

from waltz.cli.server_answers import ServerAnswers, lost_replicas
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import PartitionReport, ReplicaEntry, Standing

ZERO, ONE, TWO, THREE = map(PartitionId, range(4))


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
    owner = ServerAnswers(None, reaches={"a:1": True}, reports={ZERO: report})
    other = ServerAnswers(None, reaches={"a:1": False, "e:1": False})
    old = ServerAnswers(None, reaches={"a:1": True, "b:1": False})
    gone = ServerAnswers("gone")
    owners = {ZERO: owner, ONE: old, TWO: gone}
    assert lost_replicas([ZERO, ONE, TWO, THREE], owners, [owner, other, old, gone]) == {
        ZERO: {"b:1", "d:1"},  # another server's way to a:1 says nothing about this partition
        ONE: {"b:1"},
        TWO: {"a:1", "b:1", "e:1"},
        THREE: {"a:1", "b:1", "e:1"},
    }
