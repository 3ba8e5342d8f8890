"""Spark reads the log: `spark.read.format("waltz")`, and a session that finds its own Java.

Needs the `spark` extra. Uses the public names of `waltz`, and the inspection of storage
directories.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waltz.spark.spark_session import spark_session

if TYPE_CHECKING:
    from waltz.spark.observing import observe
    from waltz.spark.pipelines.changes import open_changes

__all__ = ["observe", "open_changes", "spark_session"]

_MODULES = {
    "observe": "waltz.spark.observing",
    "open_changes": "waltz.spark.pipelines.changes",
}


def __getattr__(name: str) -> Any:
    """Import a function when it is asked for: commands that only find Java need none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
