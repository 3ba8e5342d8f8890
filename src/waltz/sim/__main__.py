"""`python -m waltz.sim`: run seeds, print one line each, and how to replay what fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from typing import Final

from waltz.sim.faults import PLANS
from waltz.sim.simulation import Outcome, simulate
from waltz.sim.workloads import WORKLOADS

FAILURES_MAX: Final = 5
"""Failing runs printed before giving up."""

BUGS: Final = ("syncs_late",)

SEEDS_SHOWN_MAX: Final = 20
"""Of more seeds, only failing ones get a line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all runs were clean, else 1."""
    options = _parser().parse_args(arguments)
    workloads = [options.workload] if options.workload else list(WORKLOADS)
    plans = [options.faults] if options.faults else list(PLANS)
    scenes = list(product(workloads, plans))
    failures = transactions = struck = 0
    virtual_seconds = 0.0
    for number in range(options.seeds):
        seed = options.seed + number
        workload, faults = scenes[seed % len(scenes)]
        outcome = simulate(
            seed,
            workload,
            faults,
            syncs_late=options.bug == "syncs_late",
            with_log=options.trace,
        )
        transactions += outcome.transactions
        struck += outcome.faults_count
        virtual_seconds += outcome.virtual_seconds
        if options.trace:
            for line in outcome.trace.lines():
                _say(line)
        if outcome.violations or options.seeds <= SEEDS_SHOWN_MAX:
            _say_outcome(outcome, options.bug)
        failures += bool(outcome.violations)
        if failures >= FAILURES_MAX:
            break
    _say(
        f"{number + 1} seeds, {failures} failed: {transactions} transactions, {struck} faults,"
        f" {virtual_seconds:.0f} virtual seconds"
    )
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m waltz.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds (default 1)")
    parser.add_argument("--workload", choices=list(WORKLOADS), help="default: all, by seed")
    parser.add_argument("--faults", choices=list(PLANS), help="default: all, by seed")
    parser.add_argument("--bug", choices=BUGS, help="plant a bug that must be found")
    parser.add_argument("--trace", action="store_true", help="print what happened, in order")
    return parser


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _say_outcome(outcome: Outcome, bug: str | None) -> None:
    _say(
        f"seed {outcome.seed} {outcome.workload} {outcome.faults}: digest {outcome.digest},"
        f" {outcome.transactions} transactions, {outcome.faults_count} faults,"
        f" {outcome.virtual_seconds:.3f} virtual seconds, {outcome.callbacks} callbacks"
    )
    if outcome.violations:
        for violation in outcome.violations:
            _say(f"  {violation}")
        _say(
            f"replay: python -m waltz.sim --seed {outcome.seed} --workload {outcome.workload}"
            f" --faults {outcome.faults}" + (f" --bug {bug}" if bug else "")
        )


if __name__ == "__main__":
    sys.exit(main())
