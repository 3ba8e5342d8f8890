"""Fixtures for pytest. In the top-level conftest.py: `pytest_plugins = ["waltz.testing.fixtures"]`.

Not an entry point: a test run that does not use Waltz must not import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pytest

from waltz.errors import ConfigurationError
from waltz.testing.application_simulation import (
    FAULT_PLANS,
    NewApplication,
    SimulationOutcome,
    simulate,
)
from waltz.testing.memory_cluster import InMemoryCluster

SEEDS = 10
"""Runs of a simulated test, unless the test sets another number."""


class Simulate(Protocol):
    def __call__(
        self,
        new_application: NewApplication,
        *,
        seeds: int = SEEDS,
        faults: Sequence[str] = FAULT_PLANS,
        **settings: Any,
    ) -> list[SimulationOutcome]: ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "waltz(**settings): settings of the fixture waltz_cluster, for example partitions=3",
    )


@pytest.fixture
def waltz_cluster(request: pytest.FixtureRequest) -> Iterator[InMemoryCluster]:
    """Yield an empty cluster in memory; its settings are those of the mark `waltz`."""
    mark = request.node.get_closest_marker("waltz")
    with InMemoryCluster(for_tests=True, **(mark.kwargs if mark else {})) as cluster:
        yield cluster


@pytest.fixture
def waltz_simulate(request: pytest.FixtureRequest) -> Simulate:
    """Return a function that runs an application under `seeds` seeds and the fault plans `faults`,
    by turns.

    A seed that fails ends the test and prints how to repeat it. From the environment: WALTZ_SEED
    sets one seed to run, WALTZ_SEEDS the number of seeds, WALTZ_FAULTS the plans, separated by
    commas.
    """

    def run(
        new_application: NewApplication,
        *,
        seeds: int = SEEDS,
        faults: Sequence[str] = FAULT_PLANS,
        **settings: Any,
    ) -> list[SimulationOutcome]:
        plans = os.environ["WALTZ_FAULTS"].split(",") if "WALTZ_FAULTS" in os.environ else faults
        numbers = range(_number("WALTZ_SEEDS", seeds))
        if "WALTZ_SEED" in os.environ:
            first = _number("WALTZ_SEED", 0)
            numbers = range(first, first + 1)
        outcomes = []
        for seed in numbers:
            plan = plans[seed % len(plans)]
            test = request.node.nodeid.replace("'", "'\\''")  # as a shell reads it
            replay = f"WALTZ_SEED={seed} WALTZ_FAULTS={plan} pytest '{test}'"
            outcomes.append(
                simulate(new_application, seed=seed, faults=plan, replay=replay, **settings)
            )
        return outcomes

    return run


def _number(name: str, otherwise: int) -> int:
    value = os.environ.get(name, str(otherwise))
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"{name} is {value!r}; expected a number") from None
