"""`python -m proofs.model_check`: visit every state of small worlds that the product runs.

First its worlds as they are, which must be without violation; then the mutations, each of which
must be found, by the shortest way to what it breaks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from proofs.evidence import Evidence
from proofs.model.cases import CHECKS, Case
from proofs.model.explore import Exploration
from proofs.model.mutations import LIMITS, MUTATIONS
from proofs.model.story import tell

ALL: Final = (*CHECKS, *MUTATIONS, *LIMITS)

MUTATION_STATES_MAX: Final = 1_000_000
"""Where a search is given up: several times what any mutation takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if there is no violation and every mutation is found, else 1."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    evidence = Evidence.load(options.evidence) if options.evidence else Evidence()
    if options.case is not None:
        case = next(case for case in ALL if case.name == options.case)
        return _check(console, [case], options.states, evidence)
    checked = _check(console, CHECKS, options.states, evidence)
    if options.evidence:
        evidence.save(options.evidence)
    return _search(console) or checked


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m proofs.model_check", description=__doc__)
    names = [case.name for case in ALL]
    parser.add_argument("--case", choices=names, metavar="NAME", help="only this one, by its name")
    parser.add_argument("--states", type=int, help="stop each world after so many states")
    parser.add_argument("--evidence", type=Path, metavar="FILE", help="add what was seen to a file")
    return parser


def _check(
    console: Console, cases: Sequence[Case], states_max: int | None, evidence: Evidence
) -> int:
    """Explore worlds that must be without violation."""
    states = transitions = healed = violated = 0
    seconds = 0.0
    for case in cases:
        with _watching(console, case.name) as watch:
            world, found = case.explore(states_max=states_max, watch=watch)
        states, transitions = states + found.states, transitions + found.transitions
        healed, seconds = healed + found.healed, seconds + found.seconds
        _say(console, case, found)
        if found.is_complete and found.violation is None:
            evidence.worlds[case.name] = {
                "states": found.states,
                "transitions": found.transitions,
                "healed": found.healed,
            }
        if found.violation is not None:
            violated += 1
            with case.applied():
                for line in tell(world, found.violation.actions):
                    console.print(f"    {line}", markup=False, soft_wrap=True)
    console.print(
        f"{len(cases)} worlds, {violated} with a violation: {states:,} states, {transitions:,}"
        f" transitions, {healed:,} states healed, {seconds:.0f} s",
        soft_wrap=True,
    )
    return 1 if violated else 0


def _search(console: Console) -> int:
    """Explore worlds that must have a violation."""
    missed = 0
    for case in (*MUTATIONS, *LIMITS):
        with _watching(console, case.name) as watch:
            _, found = case.explore(states_max=MUTATION_STATES_MAX, watch=watch)
        missed += found.violation is None
        _say(console, case, found)
    console.print(f"{len(MUTATIONS)} mutations and {len(LIMITS)} known limits, {missed} not found")
    return 1 if missed else 0


def _say(console: Console, case: Case, found: Exploration) -> None:
    if found.violation is not None:
        outcome = f"{len(found.violation.actions)} steps to {found.violation.text}"
    else:
        outcome = "no violation" if found.is_complete else "no violation so far"
    console.print(
        f"{case.name}: {outcome}; {found.states:,} states, {found.transitions:,} transitions,"
        f" {found.depth} deep, {found.seconds:.1f} s",
        soft_wrap=True,
        markup=False,
    )


@contextmanager
def _watching(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name)

        def watch(states: int, depth: int) -> None:
            progress.update(task, description=f"{name}: {states:,} states, {depth} deep")

        yield watch


if __name__ == "__main__":
    sys.exit(main())
