"""A part of a target whose methods are steps, so that a test can end the run between them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any


class Stepped:
    """A stand-in for `inner`, with a step before each of its methods that `before` names, and one
    after each that `after` names. A step may raise."""

    def __init__(
        self,
        inner: Any,
        step: Callable[[], None],
        *,
        before: Collection[str] = (),
        after: Collection[str] = (),
    ) -> None:
        for name in (*before, *after):
            assert callable(getattr(inner, name)), "a step that is never taken proves nothing"
        self._inner = inner
        self._step = step
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._before and name not in self._after:
            return found

        def stepped(*given: Any) -> Any:
            if name in self._before:
                self._step()
            result = found(*given)
            if name in self._after:
                self._step()
            return result

        return stepped
