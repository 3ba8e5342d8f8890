"""Applications in the simulator: a right one passes, and the mistakes of the others are found."""

from __future__ import annotations

import pytest

from tests.shares import one_in
from tests.testing.applications import Counting, Forgetful, Hasty, Poisoned, WithoutLocks
from waltz.errors import ConfigurationError
from waltz.testing import FAULT_PLANS, SimulatedApplication, SimulationFailedError, simulate

SEEDS_MAX = 100


@pytest.mark.parametrize("faults", one_in(12, FAULT_PLANS))
def test_a_right_application_passes_under_every_fault_plan(faults: str) -> None:
    outcome = simulate(Counting, seed=1, faults=faults)
    assert outcome.transactions >= 24
    assert outcome.struck.total() > 0 or faults == "none"


def test_a_seed_is_one_run() -> None:
    one, other = (simulate(Counting, seed=5, faults="client_crash") for _ in range(2))
    assert one == other
    assert simulate(Counting, seed=6, faults="client_crash").digest != one.digest


def found(application: type[SimulatedApplication], faults: str) -> SimulationFailedError:
    """The first failure that the seeds find."""
    for seed in range(SEEDS_MAX):
        try:
            simulate(application, seed=seed, faults=faults)
        except SimulationFailedError as error:
            return error
    raise AssertionError(f"{SEEDS_MAX} seeds have not found what is wrong")


def test_a_missing_lock_is_found() -> None:
    assert "an addition is lost" in str(found(WithoutLocks, "slow_links"))


def test_a_mark_that_is_forgotten_is_found() -> None:
    assert "it would be applied again after a crash" in str(found(Forgetful, "none"))


@pytest.mark.long
def test_a_change_that_is_not_one_with_its_mark_is_found() -> None:
    """PM-50: a process dies in the middle of applying, when it asks for data."""
    assert "applied each once" in str(found(Hasty, "client_crash"))


@pytest.mark.parametrize("room", [1, 100])
def test_a_transaction_that_cannot_be_applied_is_named(room: int) -> None:
    """PM-38: whether the work comes to its end, or waits for room behind it for good (PM-42)."""
    with pytest.raises(SimulationFailedError) as raised:
        simulate(Poisoned, seed=0, faults="none", max_concurrent_transactions=room)
    error = raised.value
    assert "through 2, and the log goes to" in str(error)
    assert "three is too many" in str(error)


def test_a_failure_ends_with_the_line_that_repeats_it() -> None:
    error = found(Forgetful, "power_cut")
    assert str(error).splitlines()[-1] == f"replay: {error.replay}"
    again = eval(  # the line as it stands there
        f"lambda simulate, Forgetful: {error.replay}", {}
    )
    with pytest.raises(SimulationFailedError) as raised:
        again(simulate, Forgetful)
    assert raised.value.violations == error.violations


def test_the_line_that_repeats_a_run_has_the_options_of_its_clients() -> None:
    with pytest.raises(SimulationFailedError) as raised:
        simulate(Poisoned, seed=0, faults="none", max_concurrent_transactions=1, partitions=1)
    replay = raised.value.replay
    assert replay.endswith(", seconds=30.0, max_concurrent_transactions=1)")
    with pytest.raises(SimulationFailedError) as again:
        eval(replay, {"simulate": simulate, "Poisoned": Poisoned})
    assert again.value.violations == raised.value.violations


def test_an_error_in_the_work_is_told() -> None:
    class Broken(Counting):
        async def work(self, client: object, random: object) -> None:
            raise ZeroDivisionError("in the work")

    with pytest.raises(SimulationFailedError, match="ZeroDivisionError: in the work"):
        simulate(Broken, seed=0, faults="none")


def test_an_unknown_fault_plan_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="faults is 'earthquake'; expected one of none, "):
        simulate(Counting, seed=0, faults="earthquake")
