"""The kinds of faults in the files of a storage node, and a bounded report of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from waltz.types import TransactionId

FINDINGS_KEPT_MAX: Final = 100
"""Findings that one report names; all are counted (the original: 100)."""


class FindingKind(Enum):
    """The kind of a finding; the value is its name for people."""

    DAMAGE = "damage"
    """Records that were durable do not check out; they must come back from other replicas."""
    HEADER = "header"
    """A file's header is not what its place demands."""
    INDEX = "index wrong"
    """Index entries do not say where their records lie; they can be made anew from the data."""
    PROMISE = "damaged promise"
    """The node's promises for a partition do not check out."""
    INDEX_SHORT = "index short"
    """Entries are missing at the index's end, as after a crash; the next start adds them."""
    TORN_TAIL = "torn tail"
    """Bytes at the end that no answer rested on; the next start cuts them."""
    ORPHAN = "orphan file"
    """A file that a crash has left, or of unknown origin; the node does not use it."""
    NOTE = "note"
    """Something unusual that is not wrong."""

    @property
    def is_damage(self) -> bool:
        """Whether something is wrong that no crash explains."""
        return self in (
            FindingKind.DAMAGE,
            FindingKind.HEADER,
            FindingKind.INDEX,
            FindingKind.PROMISE,
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a file, or in its transactions `first` to `next - 1`; both are None where a
    finding concerns no transactions."""

    kind: FindingKind
    path: str
    text: str
    first: TransactionId | None = None
    next_transaction_id: TransactionId | None = None
    offset: int | None = None

    @property
    def count(self) -> int:
        """The number of transactions that it concerns."""
        if self.first is None or self.next_transaction_id is None:
            return 0
        return self.next_transaction_id - self.first

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "is_damage": self.kind.is_damage,
            "path": self.path,
            "first_transaction_id": self.first,
            "next_transaction_id": self.next_transaction_id,
            "offset": self.offset,
            "text": self.text,
        }


@dataclass(slots=True)
class Report:
    """The numbers of things checked, and the findings; keeps the first findings and counts all.

    A record fails if it does not check out or is missing, an entry if it is wrong or missing.
    """

    files: int = 0
    records: int = 0
    records_failed: int = 0
    entries: int = 0
    entries_failed: int = 0
    bytes: int = 0
    counts: Counter[FindingKind] = field(default_factory=Counter)
    _damage: list[Finding] = field(default_factory=list)
    _harmless: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        if finding.kind is FindingKind.DAMAGE:
            self.records_failed += finding.count
        elif finding.kind in (FindingKind.INDEX, FindingKind.INDEX_SHORT):
            self.entries_failed += finding.count
        self._keep([finding])

    def merge(self, other: Report) -> None:
        self.files += other.files
        self.records += other.records
        self.entries += other.entries
        self.bytes += other.bytes
        self.records_failed += other.records_failed
        self.entries_failed += other.entries_failed
        self.counts += other.counts
        self._keep(other.findings)

    def _keep(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            kept = self._damage if finding.kind.is_damage else self._harmless
            if len(kept) < FINDINGS_KEPT_MAX:
                kept.append(finding)

    @property
    def findings(self) -> list[Finding]:
        """The findings kept, damage first."""
        return (self._damage + self._harmless)[:FINDINGS_KEPT_MAX]

    @property
    def is_damaged(self) -> bool:
        return any(kind.is_damage for kind in self.counts)

    @property
    def finding_count(self) -> int:
        return self.counts.total()
