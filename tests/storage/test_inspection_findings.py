"""Findings and the report of them (TL-70)."""

from __future__ import annotations

from waltz.storage.inspection.findings import FINDINGS_KEPT_MAX, Finding, FindingKind, Report
from waltz.types import TransactionId


def finding(kind: FindingKind, first: int = 0, count: int = 1) -> Finding:
    return Finding(kind, "/a", "why", TransactionId(first), TransactionId(first + count), 128)


def test_failed_records_and_entries_are_counted_by_range() -> None:
    report = Report(records=10, entries=10)
    report.add(finding(FindingKind.DAMAGE, 2, 3))
    report.add(finding(FindingKind.INDEX, 7, 2))
    report.add(finding(FindingKind.INDEX_SHORT, 9, 1))
    report.add(Finding(FindingKind.HEADER, "/a", "why"))
    assert (report.records_failed, report.entries_failed, report.finding_count) == (3, 3, 4)


def test_only_what_no_crash_explains_is_damage() -> None:
    for kind in FindingKind:
        report = Report()
        report.add(Finding(kind, "/a", "why"))
        assert report.is_damaged is kind.is_damage
    assert {kind for kind in FindingKind if kind.is_damage} == {
        FindingKind.DAMAGE,
        FindingKind.HEADER,
        FindingKind.INDEX,
        FindingKind.PROMISE,
    }


def test_all_are_counted_and_some_kept_damage_first() -> None:
    """TL-70: at most 100."""
    report = Report()
    for number in range(3 * FINDINGS_KEPT_MAX):
        report.add(finding(FindingKind.NOTE, number))
    report.add(finding(FindingKind.DAMAGE, 7))
    assert report.finding_count == 3 * FINDINGS_KEPT_MAX + 1
    assert len(report.findings) == FINDINGS_KEPT_MAX == 100
    assert report.findings[0].kind is FindingKind.DAMAGE


def test_reports_add_up() -> None:
    one, other = Report(files=2, records=5, entries=5, bytes=100), Report(files=1, bytes=7)
    one.add(finding(FindingKind.NOTE))
    other.add(finding(FindingKind.DAMAGE, 1, 2))
    other.add(finding(FindingKind.INDEX, 1, 4))
    one.merge(other)
    assert (one.files, one.records, one.entries, one.bytes) == (3, 5, 5, 107)
    assert (one.records_failed, one.entries_failed) == (2, 4)
    assert [found.kind for found in one.findings] == [
        FindingKind.DAMAGE,
        FindingKind.INDEX,
        FindingKind.NOTE,
    ]


def test_a_finding_prints_as_json() -> None:
    assert finding(FindingKind.DAMAGE, 3, 2).to_json() == {
        "kind": "damage",
        "is_damage": True,
        "path": "/a",
        "first_transaction_id": 3,
        "next_transaction_id": 5,
        "offset": 128,
        "text": "why",
    }
    assert Finding(FindingKind.NOTE, "/a", "why").count == 0
