"""What `waltz status` makes of what it hears."""

from __future__ import annotations

import pytest

from waltz.cli.overview import (
    ClusterOverview,
    Heard,
    partition_overview,
    server_overview,
    writable_of,
)
from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import UnavailableError
from waltz.operators.questions_shell import ReportAnswers, ServerReport
from waltz.types import Address, Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.report_protocol import PartitionReport, ReplicaEntry, Standing

ZERO, ONE, TWO = map(PartitionId, range(3))
AT = Address("v", 1)
NODE = ReplicaId("s:1")


def reported(writable: int, *, standing: Standing = Standing.CURRENT) -> ReportAnswers:
    replica = ReplicaEntry(NODE, standing, writable, 10, "has its reason")
    reason = None if writable == 1 else "1 of 3 replicas"
    report = PartitionReport(
        ZERO, Generation(1), SessionId(2), TransactionId(7), writable, reason, (replica,)
    )
    return ReportAnswers({ZERO: report}, 0.5, None)


def test_a_partition_that_cannot_be_written_says_why() -> None:
    """SV-26, TL-58, F-6: and one of which nobody knows whether it can is unknown."""
    well = ServerReport({ZERO: True, ONE: False}, {"a:1": True, "b:1": False, "c:1": False})
    lost = UnavailableError("connection refused")
    old = UnavailableError("a version that cannot say")
    assert writable_of(ZERO, Heard(well, reported(1))) == (True, None)
    assert writable_of(ZERO, Heard(well, reported(0))) == (False, "1 of 3 replicas")
    assert writable_of(ZERO, Heard(well, reported(-1))) == (None, "1 of 3 replicas")
    assert writable_of(ONE, Heard(well, reported(1))) == (
        False,
        "it has no store session; its server reaches 1 of 3 storage nodes, not b:1, c:1",
    )
    assert writable_of(TWO, Heard(well, reported(1))) == (False, "its server has not opened it")
    assert writable_of(ZERO, None) == (False, "no server has it")
    assert writable_of(ZERO, Heard(lost, lost)) == (None, "its server does not answer")
    assert server_overview(AT, Heard(lost, lost)).problems == (
        "does not answer: connection refused",
    )
    writable, problem = writable_of(ZERO, Heard(well, old))
    assert writable is None
    assert problem is not None
    assert "a version that cannot say" in problem


@pytest.mark.parametrize(
    ("heard", "is_healthy"),
    [
        (Heard(ServerReport({ZERO: True}, {}), reported(1)), True),
        (Heard(ServerReport({ZERO: True}, {}), reported(1, standing=Standing.ABSENT)), False),
        (Heard(ServerReport({ZERO: True}, {}), reported(0, standing=Standing.REFUSING)), False),
        (Heard(ServerReport({ZERO: True}, {}), UnavailableError("too old")), None),
        (Heard(UnavailableError("gone"), UnavailableError("gone")), False),
    ],
)
def test_a_cluster_is_healthy_only_if_everything_has_said_so(
    heard: Heard, is_healthy: bool | None
) -> None:
    """F-5: what nobody has said is neither well nor ill."""
    placement = StoragePlacement(1, {NODE: (ZERO,)}, {NODE: 0}, {NODE: 2})
    partition = partition_overview(ZERO, (AT, 1), heard, placement, 2, None)
    overview = ClusterOverview("c", "key", (), (server_overview(AT, heard),), (partition,))
    assert overview.is_healthy is is_healthy
    assert overview.to_json()["healthy"] is is_healthy
    if is_healthy is None:
        assert partition.replicas_current is None
        assert partition.replica_states[0].standing == "unknown"
