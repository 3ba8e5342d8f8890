"""Replace attributes of the product for a while, so that it does something wrong.

Owns the replacement and its undoing. What is replaced must be there, so that nobody goes on to
believe in a bug that is not planted any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Patch:
    """`owner`'s own attribute `name` becomes what `change` makes of it.

    `owner` is a class, or the module in which a function is called.
    """

    owner: Any
    name: str
    change: Callable[[Any], Any]

    @property
    def present(self) -> Any:
        """The attribute as it is. Raises LookupError: the product has moved on."""
        try:
            return vars(self.owner)[self.name]
        except KeyError:
            raise LookupError(f"{self.owner.__name__} has no {self.name} any more") from None


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Let all of `patches` hold, one on top of the other; or none. Raises LookupError."""
    originals: list[tuple[Patch, Any]] = []
    try:
        for patch in patches:
            original = patch.present
            originals.append((patch, original))
            setattr(patch.owner, patch.name, patch.change(original))
        yield
    finally:
        for patch, original in reversed(originals):
            setattr(patch.owner, patch.name, original)
