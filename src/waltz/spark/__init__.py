"""Spark reads the log: `spark.read.format("waltz")`, and a session that finds its own Java.

Needs the `spark` extra. Uses the public names of `waltz`, and the inspection of storage
directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waltz.spark.spark_session import spark_session

if TYPE_CHECKING:
    from waltz.spark.observing import observe

__all__ = ["observe", "spark_session"]


def __getattr__(name: str) -> Any:
    """Import `observe` when it is asked for: commands that only find Java need none of it."""
    if name != "observe":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from waltz.spark.observing import observe

    return observe
