"""A sample of the fuzzing of every decoder (C6), and proof that it can fail.

`make fuzz` runs all.
"""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzing import allowed_peak, fuzz, input_of, target_named
from tests.fuzz.targets import TARGETS, Target
from tests.shares import one_in

INPUTS = 40_000
PARTS = 2


@pytest.mark.parametrize("part", one_in(2, range(PARTS)))
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_breaks_a_decoder(target: Target, part: int) -> None:
    """No error but the named ones, no hang, no allocation beyond what the input is worth."""
    count = INPUTS * target.share // 1_000 // PARTS
    found = fuzz(target, "a sample", part * count, count)
    assert found.failures == []
    assert found.inputs == count


def test_an_input_is_made_by_its_seed_alone() -> None:
    for target in TARGETS:
        assert input_of(target, "a 7") == input_of(target, "a 7")
        assert len({input_of(target, f"a {number}") for number in range(50)}) > 25


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_some_inputs_get_through(target: Target) -> None:
    """A decoder that refuses everything at the door would show nothing."""
    assert fuzz(target, "through", 1, 200).accepted > 5


def broken(target: Target, run: object) -> Target:
    return Target(target.name, 0, target.make, run)  # type: ignore[arg-type]


def test_another_error_is_a_failure_with_its_recipe() -> None:
    def run(data: bytes) -> bool:
        if len(data) > 30:
            raise IndexError("beyond the end")
        return True

    found = fuzz(broken(target_named("records"), run), "mine", 0, 100)
    assert found.failures
    recipe = found.failures[0]
    assert recipe.startswith("--target 'records' --input 'mine ")
    assert "IndexError('beyond the end')" in recipe


def test_an_allocation_that_a_length_asked_for_is_a_failure() -> None:
    def run(data: bytes) -> bool:
        return not bytes(64 * 1024 * 1024)

    found = fuzz(broken(target_named("records"), run), "mine", 0, 1)
    assert "bytes allocated" in found.failures[0]
    assert allowed_peak(target_named("records"), b"") < 64 * 1024 * 1024


def test_a_hang_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.fuzzing.SECONDS_MAX", 0.05)

    def run(data: bytes) -> bool:
        while True:
            pass

    found = fuzz(broken(target_named("records"), run), "mine", 1, 1)
    assert "HangError" in found.failures[0]
