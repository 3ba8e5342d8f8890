"""Spark's listener of streaming queries, which passes on what concerns logs.

A module of its own, since it imports PySpark: `observe` imports it once there is a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from waltz.spark.observing import logs_among

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryIdleEvent

    from waltz.spark.observing import StreamFigures


class _Listener(StreamingQueryListener):
    def __init__(self, figures: StreamFigures) -> None:
        self._figures = figures

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        sources = [
            (each.endOffset, each.latestOffset, each.numInputRows) for each in progress.sources
        ]
        self._figures.progressed(
            str(progress.id), progress.name, logs_among(sources), progress.durationMs
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._figures.ended(str(event.id), has_failed=event.exception is not None)


def listener_of(figures: StreamFigures) -> StreamingQueryListener:
    """Return a listener that writes `figures`."""
    return _Listener(figures)
