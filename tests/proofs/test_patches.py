"""Attributes are replaced for a while, and what is not there cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proofs.patches import Patch, patched


class Product:
    def answer(self) -> int:
        return 1


class Heir(Product): ...


def doubled(answer: Callable[[Product], int]) -> Callable[[Product], int]:
    return lambda self: 2 * answer(self)


def test_patches_hold_on_top_of_each_other_and_are_taken_back() -> None:
    original = Product.answer
    patch = Patch(Product, "answer", doubled)
    with patched((patch, patch)):
        assert Product().answer() == 4
    assert Product.answer is original


def test_patches_are_taken_back_after_a_failure() -> None:
    original = Product.answer
    with pytest.raises(ZeroDivisionError), patched((Patch(Product, "answer", doubled),)):
        raise ZeroDivisionError
    assert Product.answer is original


def test_what_is_not_there_any_more_cannot_be_patched_and_nothing_else_is() -> None:
    original = Product.answer
    gone = Patch(Heir, "answer", doubled)
    with (
        pytest.raises(LookupError, match="Heir has no answer any more"),
        patched((Patch(Product, "answer", doubled), gone)),
    ):
        pass
    assert Product.answer is original
