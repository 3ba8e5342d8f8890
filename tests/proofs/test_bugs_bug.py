"""A seeded bug is planted for a while, and loudly fails where the product has moved on."""

from __future__ import annotations

import pytest

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch


class Product:
    answer = 1


def bug(name: str) -> Bug:
    return Bug(
        name="the answer is wrong",
        breaks="I1 durability",
        patches=(Patch(Product, name, lambda answer: answer + 1),),
        workloads=("append", "bank"),
        plans=("none", "power_cut"),
        caught=Scene(1, "append", "none"),
    )


def test_a_bug_is_planted_for_a_while() -> None:
    with bug("answer").planted():
        assert Product.answer == 2
    assert Product.answer == 1


def test_a_bug_that_cannot_be_planted_any_more_fails() -> None:
    with (
        pytest.raises(LookupError, match="Product has no question any more"),
        bug("question").planted(),
    ):
        pass


def test_scenes_are_its_workloads_under_its_plans() -> None:
    assert bug("answer").scenes() == [
        ("append", "none"),
        ("append", "power_cut"),
        ("bank", "none"),
        ("bank", "power_cut"),
    ]
