"""What a seeded bug is: a mistake in the product, and where it is hunted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from proofs.patches import Patch, patched


class Scene(NamedTuple):
    """A run, but for what is drawn from its seed."""

    seed: int
    workload: str
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A mistake that a competent person could make, planted from outside."""

    name: str
    """A sentence that says what the product does wrong."""
    breaks: str
    """The promise that is broken."""
    patches: tuple[Patch, ...]
    workloads: tuple[str, ...]
    """Where it is hunted: some of the ordinary workloads, under some of the ordinary plans."""
    plans: tuple[str, ...]
    caught: Scene
    """A run that has found it, and is clean without it. After a change of the product the seed may
    be another run; then one soon after it does."""

    def planted(self) -> AbstractContextManager[None]:
        """Let the product make the mistake. Raises LookupError: it has moved on."""
        return patched(self.patches)

    def scenes(self) -> Sequence[tuple[str, str]]:
        """All workloads and plans that it is hunted in."""
        return [(workload, plan) for workload in self.workloads for plan in self.plans]


def forgotten(_: Callable[..., Any]) -> Callable[..., None]:
    """The change to a function that is never called when it should be."""

    def nothing(*_: object, **__: object) -> None: ...

    return nothing
