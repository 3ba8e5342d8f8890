"""numpy, imported at its first use: a command that moves no records does not pay for it.

Owns `np`, which the modules below every protocol import in the place of numpy: they are part of
each command that talks, and importing numpy is a quarter of what such a command may cost. Modules
that only servers and storage nodes have import numpy itself.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np"]


class _AtFirstUse(ModuleType):
    """Becomes numpy when something of it is wanted, and is an ordinary module from then on.

    Threads may want it at once: importing waits for the import lock, and what comes after it has
    the same result however often it is done. (Before Python 3.12 the standard library's LazyLoader
    gives the second thread half a module.)
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
