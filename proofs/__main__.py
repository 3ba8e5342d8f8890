"""`python -m proofs`: run seeds, print one line each, and how to replay what fails."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from proofs.bugs.registry import BUGS
from proofs.evidence import Evidence
from proofs.hunting import HUNTS, SEEDS_PER_HUNT, hunt_all
from proofs.shrinking import shrink, signature
from waltz.errors import ConfigurationError
from waltz.sim.applications.workloads import WORKLOADS
from waltz.sim.faults.plans import PLANS
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.scenario import Scenario, draw_scenario
from waltz.sim.simulation import RunOutcome, play

FAILURES_MAX: Final = 5
"""Failing runs printed before giving up."""

RUNS_PER_SAVE: Final = 100
"""Runs after which the evidence is saved, lest it be lost."""

SEEDS_SHOWN_MAX: Final = 20
"""Of more seeds, only failing ones get a line."""

PROGRESS_SECONDS: Final = 10.0
"""Between two lines that say how many seeds were run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all runs were clean, or all hunts found their bug; else 1."""
    options = _parser().parse_args(arguments)
    if options.trace and options.processes > 1:
        sys.exit("--trace needs one process")
    if options.bugs:
        return _hunt(options)
    with _planted(options):
        return _run(options)


def _hunt(options: argparse.Namespace) -> int:
    bugs = [BUGS[options.bug]] if options.bug else BUGS.values()
    try:
        were_found = hunt_all(
            bugs,
            options.bugs,
            _say,
            hunts=options.hunts,
            seeds_max=SEEDS_PER_HUNT if options.seeds is None else options.seeds,
            anywhere=options.anywhere,
        )
    except ConfigurationError as error:
        sys.exit(str(error))
    return 0 if were_found else 1


def _planted(options: argparse.Namespace) -> AbstractContextManager[None]:
    return BUGS[options.bug].planted() if options.bug else nullcontext()


def _run(options: argparse.Namespace) -> int:
    evidence = Evidence.load(options.evidence) if options.evidence else Evidence()
    faults: Counter[str] = Counter()
    effects = 0
    runs = failures = transactions = 0
    virtual_seconds, told_at = 0.0, time.monotonic()
    for outcome in _outcomes(options):
        runs += 1
        transactions += outcome.transactions
        faults += outcome.faults
        effects += outcome.effects.total()
        virtual_seconds += outcome.virtual_seconds
        evidence.add(outcome)
        if options.evidence and runs % RUNS_PER_SAVE == 0:
            evidence.save(options.evidence)
        if options.trace:
            for line in outcome.trace.lines():
                _say(line)
        if outcome.violations or (options.seeds or 1) <= SEEDS_SHOWN_MAX:
            _say_outcome(outcome, options)
        if outcome.violations and options.shrink:
            _say_shrunk(outcome)
        failures += bool(outcome.violations)
        if failures >= options.failures:
            break
        if (now := time.monotonic()) >= told_at + PROGRESS_SECONDS:
            told_at = now
            sys.stderr.write(f"{runs} of {options.seeds or 1} seeds, {failures} failed\n")
    if options.evidence:
        evidence.save(options.evidence)
    _say(
        f"{runs} seeds, {failures} failed: {transactions} transactions,"
        f" {faults.total()} faults with {effects} effects, {virtual_seconds:.0f} virtual seconds"
    )
    return 1 if failures else 0


def _outcomes(options: argparse.Namespace) -> Iterator[RunOutcome]:
    """Run all scenarios, in their order, on so many processes as there may be."""
    if options.processes == 1:
        for scenario in _scenarios(options):
            yield play(scenario, with_log=options.trace)
        return
    with get_context("fork").Pool(options.processes) as pool:  # with the bug that is planted
        yield from pool.imap(_played_apart, _scenarios(options))


def _played_apart(scenario: Scenario) -> RunOutcome:
    """What is told to another process: of its trace only the digest."""
    return replace(play(scenario), trace=RunTrace())


def _scenarios(options: argparse.Namespace) -> Iterator[Scenario]:
    """What to run: the scenario of a file, or what the seeds say."""
    if options.plan:
        try:
            yield Scenario.from_json(Path(options.plan).read_text())
        except (ConfigurationError, OSError) as error:
            sys.exit(f"{options.plan}: {error}")
        return
    bug = BUGS.get(options.bug)
    usual = (bug.workloads, bug.plans) if bug else (WORKLOADS, PLANS)
    workloads = options.workload.split(",") if options.workload else [*usual[0]]
    plans = options.faults.split(",") if options.faults else [*usual[1]]
    for names, known in ((workloads, WORKLOADS), (plans, PLANS)):
        if unknown := [each for each in names if each not in known]:
            sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    scenes = list(product(workloads, plans))
    for seed in range(options.seed, options.seed + (options.seeds or 1)):
        workload, plan = scenes[seed % len(scenes)]
        yield draw_scenario(seed, workload, plan, length=options.length)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m proofs", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--seeds", type=int, help="how many seeds (default 1), or at most per hunt")
    parser.add_argument("--workload", help=f"of {', '.join(WORKLOADS)}; default: all, by seed")
    parser.add_argument("--faults", help=f"of {', '.join(PLANS)}; default: all, by seed")
    parser.add_argument("--processes", type=int, default=1, help="that share the work (default 1)")
    parser.add_argument("--length", type=int, default=1, help="times an ordinary run (default 1)")
    parser.add_argument("--plan", metavar="FILE", help="replay the scenario in a file instead")
    parser.add_argument("--bug", choices=BUGS, metavar="NAME", help="plant a bug by its name")
    parser.add_argument("--bugs", type=Path, metavar="FILE", help="hunt them, all or the named one")
    parser.add_argument("--hunts", type=int, default=HUNTS, help="hunts per bug (default 10)")
    parser.add_argument("--anywhere", action="store_true", help="hunt in all workloads and plans")
    parser.add_argument("--shrink", action="store_true", help="print the least that still fails")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="add what was run to a file")
    parser.add_argument("--trace", action="store_true", help="print what happened, in order")
    parser.add_argument(
        "--failures", type=int, default=FAILURES_MAX, help="give up after so many (default 5)"
    )
    return parser


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_outcome(outcome: RunOutcome, options: argparse.Namespace) -> None:
    scenario = outcome.scenario
    _say(
        f"seed {scenario.seed} {scenario.workload} {scenario.plan}: digest {outcome.digest},"
        f" {outcome.transactions} transactions, {outcome.faults.total()} faults,"
        f" {outcome.virtual_seconds:.3f} virtual seconds, {outcome.callbacks} callbacks"
    )
    if outcome.violations:
        for violation in outcome.violations:
            _say(f"  {violation}")
        _say(f"replay: python -m proofs {_arguments(scenario, options)}")


def _arguments(scenario: Scenario, options: argparse.Namespace) -> str:
    bug = f" --bug {shlex.quote(options.bug)}" if options.bug else ""
    if options.plan:
        return f"--plan {options.plan}{bug}"
    arguments = f"--seed {scenario.seed} --workload {scenario.workload} --faults {scenario.plan}"
    if scenario.length > 1:
        arguments += f" --length {scenario.length}"
    return arguments + bug


def _say_shrunk(outcome: RunOutcome) -> None:
    wanted = signature(outcome.violations)
    smallest, runs_count = shrink(
        outcome.scenario, lambda each: bool(signature(play(each).violations) & wanted)
    )
    _say(f"shrunk in {runs_count} runs; save this and replay it with --plan FILE")
    _say(smallest.to_json())


if __name__ == "__main__":
    sys.exit(main())
