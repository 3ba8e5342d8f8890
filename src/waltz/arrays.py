"""numpy, imported at its first use: a command that moves no records does not pay for it.

Owns `np`, which the modules below every protocol import instead of numpy: every command that
connects imports these modules, and importing numpy is a quarter of what such a command may cost.
Modules that only servers and storage nodes use import numpy itself.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np"]


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
