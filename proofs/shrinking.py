"""Makes a failing scenario smaller for as long as it still fails.

Owns what is tried, and in which order: fewer faults, then milder ones, then less work. Every step
is a whole run, so whatever is left is needed, or was not tried in time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from waltz.sim.faults.kinds import Fault
from waltz.sim.scenario import Scenario

RUNS_MAX: Final = 300

PARALLEL: Final = ("names", "disk_operations", "pause_seconds", "seconds", "milliseconds", "rates")
"""Fields of faults that have one entry per process, if they are tuples."""

LISTS: Final = ("others", "ways", "pairs", "choices", "places")
"""Fields of faults whose entries stand for themselves."""

SPANS: Final = ("delay_seconds", "seconds", "pause_seconds", "down_seconds", "up_seconds")
"""Fields of faults that may be shorter."""


def signature(violations: Sequence[str]) -> frozenset[str]:
    """Return what kinds of violations these are, whatever their facts."""
    heads = (text.split(":")[0].split("\n")[0] for text in violations)
    return frozenset(re.sub(r"[\d.]+", "#", head) for head in heads)


def shrink(
    scenario: Scenario, still_fails: Callable[[Scenario], bool], *, runs_max: int = RUNS_MAX
) -> tuple[Scenario, int]:
    """Return the smallest scenario found that still fails, and how many runs that took."""
    runs_count = 0
    has_shrunk = True
    while has_shrunk:
        has_shrunk = False
        for candidate in _smaller(scenario):
            if runs_count == runs_max:
                return scenario, runs_count
            runs_count += 1
            if still_fails(candidate):
                scenario, has_shrunk = candidate, True
                break
    return scenario, runs_count


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """All that is a step smaller, the biggest steps first."""
    faults = scenario.faults
    for size in _halves(len(faults)):
        for start in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:start] + faults[start + size :])
    if scenario.knobs:
        yield replace(scenario, knobs={})
    for position, fault in enumerate(faults):
        for milder in _milder(fault):
            yield replace(scenario, faults=(*faults[:position], milder, *faults[position + 1 :]))
    for name in scenario.knobs:
        kept = {key: value for key, value in scenario.knobs.items() if key != name}
        yield replace(scenario, knobs=kept)
    clients = scenario.clients
    for position, client in enumerate(clients):
        for count in sorted({0, client.transactions // 2} - {client.transactions}):
            less = replace(client, transactions=count)
            yield replace(scenario, clients=(*clients[:position], less, *clients[position + 1 :]))


def _halves(count: int) -> Iterator[int]:
    while count:
        yield count
        count //= 2


def _milder(fault: Fault) -> Iterator[Fault]:
    values: dict[str, Any] = {each.name: getattr(fault, each.name) for each in fields(fault)}
    changes: list[dict[str, Any]] = []
    together = [name for name in PARALLEL if isinstance(values.get(name), tuple)]
    groups: list[list[str]] = [together]
    groups += [[name] for name in LISTS if name in values]
    for names in groups:
        count = len(values[names[0]]) if names else 0
        for position in range(count if count > 1 else 0):
            changes.append({name: _without(values[name], position) for name in names})
    for name in SPANS:
        match values.get(name):
            case float(value) if value > 0.0:
                changes += [{name: 0.0}, {name: round(value / 2, 3)}]
            case tuple() as spans if any(spans):
                changes.append({name: (0.0,) * len(spans)})
                changes.append({name: tuple(round(span / 2, 3) for span in spans)})
            case _:
                pass
    for change in changes:
        yield replace(fault, **change)


def _without(values: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return values[:position] + values[position + 1 :]
