"""What has been simulated so far, counted, and the page that is printed from it.

Owns the counts: runs, transactions, faults that struck, virtual time, and what was found. They are
added up over runs and never typed. `python -m proofs.evidence FILE... [--hunts FILE]` prints the
page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from proofs.hunting import Hunts
from waltz.errors import ConfigurationError
from waltz.sim.simulation import RunOutcome

YEAR_SECONDS: Final = 365.25 * 24 * 3600.0

FINDINGS_MAX: Final = 1_000
"""Failing runs that are kept with what they showed; all are counted."""

COUNTS: Final = ("seeds", "failed", "transactions", "faults", "effects")
"""What is counted by name."""


@dataclass(slots=True)
class Evidence:
    """Counts over any number of runs."""

    seeds: Counter[str] = field(default_factory=Counter)
    """Runs, by fault plan and workload with a slash between."""
    failed: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    """By workload."""
    faults: Counter[str] = field(default_factory=Counter)
    """Those that struck, by kind."""
    effects: Counter[str] = field(default_factory=Counter)
    """What they did, by kind."""
    virtual_seconds: float = 0.0
    writable_seconds_max: float = 0.0
    converged_seconds_max: float = 0.0
    findings: list[dict[str, Any]] = field(default_factory=list)
    worlds: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each world of the model check that was explored to its end: states, transitions and states
    healed."""

    def add(self, outcome: RunOutcome) -> None:
        scenario = outcome.scenario
        scene = f"{scenario.plan}/{scenario.workload}"
        self.seeds[scene] += 1
        self.transactions[scenario.workload] += outcome.transactions
        self.faults += outcome.faults
        self.effects += outcome.effects
        self.virtual_seconds += outcome.virtual_seconds
        self.writable_seconds_max = max(self.writable_seconds_max, outcome.writable_seconds)
        self.converged_seconds_max = max(self.converged_seconds_max, outcome.converged_seconds)
        if not outcome.violations:
            return
        self.failed[scene] += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(
                {
                    "seed": scenario.seed,
                    "workload": scenario.workload,
                    "faults": scenario.plan,
                    "length": scenario.length,
                    "violation": outcome.violations[0].split("\n")[0][:200],
                }
            )

    def add_all(self, other: Evidence) -> None:
        """Add what another process has counted."""
        for counts in COUNTS:
            getattr(self, counts).update(getattr(other, counts))
        self.virtual_seconds += other.virtual_seconds
        self.writable_seconds_max = max(self.writable_seconds_max, other.writable_seconds_max)
        self.converged_seconds_max = max(self.converged_seconds_max, other.converged_seconds_max)
        self.findings = (self.findings + other.findings)[:FINDINGS_MAX]
        self.worlds |= other.worlds

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read what was saved; nothing yet, if there is no such file. Raises ConfigurationError."""
        if not path.exists():
            return cls()
        try:
            data = json.loads(path.read_text())
            return cls(**(data | {name: Counter(data[name]) for name in COUNTS}))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} holds no evidence: {error!r}") from error

    def save(self, path: Path) -> None:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        path.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")

    def page(self) -> str:
        """The evidence as a page of Markdown."""
        years = self.virtual_seconds / YEAR_SECONDS
        lines = [
            "# Evidence",
            "",
            "Printed by `python -m proofs.evidence` from the counts of simulated runs, each",
            "judged by all checkers. `HACKING.md` says how to replay any of them.",
            "",
            f"- {self.seeds.total():,} runs of a whole cluster",
            f"- {self.failed.total():,} of them with a violation",
            f"- {self.transactions.total():,} transactions",
            f"- {self.faults.total():,} faults that struck, which with the network's weather met",
            f"  {self.effects.total():,} pieces of bytes, calls and disk operations",
            f"- {self.virtual_seconds:,.0f} simulated seconds ({years:.3f} years)",
            f"- writable again within {self.writable_seconds_max:.1f} s of the last fault",
            f"- all replicas equal within {self.converged_seconds_max:.1f} s of that",
            "",
            "## Runs by fault plan",
            "",
            "| Plan | Runs | With a violation |",
            "|---|---:|---:|",
            *self._plan_lines(),
            "",
            "## Transactions by workload",
            "",
            *_table(("Workload", "Transactions"), self.transactions),
            "",
            "## Faults by kind",
            "",
            *_table(("Kind", "Struck"), self.faults),
            "",
            "## What they met",
            "",
            *_table(("Kind", "Times"), self.effects),
        ]
        if self.worlds:
            lines += ["", "## Model check", "", *self._world_lines()]
        if self.findings:
            lines += ["", "## Runs with a violation", "", *self._finding_lines()]
        return "\n".join(lines) + "\n"

    def _plan_lines(self) -> list[str]:
        runs: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for into, counts in ((runs, self.seeds), (failed, self.failed)):
            for scene, count in counts.items():
                into[scene.partition("/")[0]] += count
        return [f"| {plan} | {runs[plan]:,} | {failed[plan]:,} |" for plan in sorted(runs)]

    def _world_lines(self) -> list[str]:
        together: Counter[str] = Counter()
        for found in self.worlds.values():
            together.update(found)
        rows = {**self.worlds, "together": together}
        return [
            "Small worlds of the real decision functions, every state of them visited without a",
            "violation; from some of the states it was tried that all replicas become equal.",
            "",
            "| World | States | Transitions | Healed |",
            "|---|---:|---:|---:|",
            *(
                f"| {name} | {row['states']:,} | {row['transitions']:,} | {row['healed']:,} |"
                for name, row in rows.items()
            ),
        ]

    def _finding_lines(self) -> list[str]:
        lines = ["| Seed | Workload | Faults | First violation |", "|---:|---|---|---|"]
        for finding in self.findings:
            text = finding["violation"].replace("|", "\\|")
            lines.append(
                f"| {finding['seed']} | {finding['workload']} | {finding['faults']} | {text} |"
            )
        return lines


def _table(heads: tuple[str, str], counts: Counter[str]) -> list[str]:
    return [
        f"| {heads[0]} | {heads[1]} |",
        "|---|---:|",
        *(f"| {name} | {counts[name]:,} |" for name in sorted(counts)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, with the hunts for seeded bugs if their file is named."""
    parser = argparse.ArgumentParser("python -m proofs.evidence", description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what processes have counted")
    parser.add_argument("--hunts", type=Path, help="what the hunts for seeded bugs have found")
    options = parser.parse_args(arguments)
    evidence = Evidence()
    for path in options.files:
        evidence.add_all(Evidence.load(path))
    page = evidence.page()
    if options.hunts:
        page += "\n" + "\n".join(Hunts.load(options.hunts).lines()) + "\n"
    sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
