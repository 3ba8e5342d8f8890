"""The figures of an audit log by value."""

from __future__ import annotations

from collections.abc import Sequence

from waltz.audit.audit_metrics import NO_AUDIT, AuditStanding, audit_metrics
from waltz.figures import Metric


def test_each_figure_is_told_and_none_without_an_audit_log() -> None:
    standing = AuditStanding(written=5, lost=2, waiting=1, is_failing=True)
    with_log: Sequence[Metric[None]] = audit_metrics(lambda _: standing)
    assert {each.name: each.value(None) for each in with_log} == {
        "audit_entries": 5,
        "audit_entries_lost": 2,
        "audit_entries_waiting": 1,
        "audit_failing": 1,
    }
    without: Sequence[Metric[None]] = audit_metrics(lambda _: None)
    assert [(each.value(None), each.absent) for each in without] == [(None, NO_AUDIT)] * 4
