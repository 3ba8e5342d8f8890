"""numpy, imported at its first use: a command that moves no records does not pay for it.

Owns `np`, which the modules below every protocol import instead of numpy: every command that
connects imports these modules, and importing numpy is a quarter of what such a command may cost.
Modules that only servers and storage nodes use import numpy itself.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["least", "np", "total"]

FEW_NUMBERS_MAX: Final = 64
"""Up to this many numbers a list is cheaper to add up than an array. Most columns are of a single
append, and of numpy's code for a reduction little is in the processor's cache by then."""


class _AtFirstUse(ModuleType):
    """Becomes numpy when an attribute is first used, and is an ordinary module from then on.

    Several threads may use it first: the import waits for the import lock, and the steps after it
    have the same result however often they are done. (Before Python 3.12 the standard library's
    LazyLoader gives the second thread half a module.)
    """

    def __getattr__(self, name: str) -> Any:
        real = import_module(self.__name__)
        self.__dict__.update(vars(real))
        self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(real, name)


if TYPE_CHECKING:
    import numpy as np
else:
    np = _AtFirstUse("numpy")


def total(numbers: NDArray[Any]) -> int:
    """Return the sum of a column of integers."""
    if numbers.size <= FEW_NUMBERS_MAX:
        return sum(numbers.tolist())
    return int(np.add.reduce(numbers, dtype=np.int64))


def least(numbers: NDArray[Any]) -> int:
    """Return the smallest number of a column of integers, which is not empty."""
    if numbers.size <= FEW_NUMBERS_MAX:
        return int(min(numbers.tolist()))
    return int(np.minimum.reduce(numbers))
