"""Sends events of OpenLineage from a thread of its own, so that no backend ever holds up a run.

The library's own configuration says where events go. A backend that is away, slow or full of errors
costs a line of the log and, when the command ends, a few seconds at the most.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from waltz.errors import ConfigurationError

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

    from waltz.spark.pipelines.definition import PipelineDefinition
    from waltz.spark.pipelines.lineage_events import LineageRuns

EVENTS_MAX: Final = 100
"""Events that wait to be sent; further ones are dropped, and said to be."""

END_SECONDS_MAX: Final = 5.0
"""Seconds for which a command that ends waits for events to be sent."""

log = logging.getLogger(__name__)


@contextmanager
def told_lineage(
    definition: PipelineDefinition, *, rebuild: bool = False, end_seconds: float = END_SECONDS_MAX
) -> Iterator[LineageRuns]:
    """Yield what tells a backend of lineage of each pass of a definition that asks for it. An error
    that ends the block ends the run that was told of, too. The end of the block waits at most
    `end_seconds` for events to be sent. Raises ConfigurationError: the library is missing, or its
    configuration is wrong or missing.
    """
    sender = LineageSender(lineage_client(), end_seconds=end_seconds)
    try:
        runs = lineage_runs(definition, sender, rebuild=rebuild)
        try:
            yield runs
        except BaseException as error:
            runs.failed(error)
            raise
    finally:
        sender.close()


def lineage_runs(
    definition: PipelineDefinition, sender: LineageSender, *, rebuild: bool = False
) -> LineageRuns:
    """Return what tells `sender` of each pass, with the time and the versions of this process."""
    from importlib.metadata import version

    import pyspark
    from openlineage.client.uuid import generate_new_uuid

    from waltz.spark.pipelines.lineage_events import LineageRuns

    return LineageRuns(
        definition,
        sender.tell,
        version=version("waltz-log"),
        spark_version=pyspark.__version__,
        clock=lambda: datetime.now(UTC),
        new_id=generate_new_uuid,
        rebuild=rebuild,
    )


def lineage_client() -> OpenLineageClient:
    """Return the library's client as its own configuration says. Raises ConfigurationError."""
    try:
        from openlineage.client import OpenLineageClient
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the definition has `lineage`, and {error.name} is missing: run"
            " `pip install '.[lineage]'` in a checkout of Waltz, or leave `lineage` out"
        ) from error
    ours = logging.getLogger("openlineage.client.client")
    ours.addFilter(_is_error)
    try:
        # The repository of the working directory need not be that of the definition.
        client = OpenLineageClient(config={"facets": {"source_code_location": {"disabled": True}}})
        is_chosen = bool((client.config.transport or {}).get("type"))
    except Exception as error:
        raise ConfigurationError(
            f"the configuration of OpenLineage (OPENLINEAGE_URL, openlineage.yml) is wrong: {error}"
        ) from error
    finally:
        ours.removeFilter(_is_error)
    if client.transport.kind == "console":
        if not is_chosen:
            raise ConfigurationError(
                "the definition has `lineage`, and nothing says where to: set OPENLINEAGE_URL, or"
                " write a transport into openlineage.yml (see docs/pipelines.md)"
            )
        _show_console()
    return client


def _is_error(record: logging.LogRecord) -> bool:
    """Keep what the library says of a file that it cannot read; that it has no configuration is an
    error of ours."""
    return record.levelno >= logging.ERROR


def _show_console() -> None:
    """Let the events of the console transport, which are lines of a logger, be seen on stderr."""
    console = logging.getLogger("openlineage.client.transport.console")
    if not console.hasHandlers():
        console.addHandler(logging.StreamHandler(sys.stderr))
        console.setLevel(logging.INFO)


class LineageSender:
    """A thread that hands events to the client, in their order.

    end_seconds  how long `close` waits.
    """

    def __init__(self, client: OpenLineageClient, *, end_seconds: float = END_SECONDS_MAX) -> None:
        self._client, self._end_seconds = client, end_seconds
        self._events: queue.Queue[RunEvent | None] = queue.Queue(EVENTS_MAX)
        self._lock = threading.Lock()
        self._unsent = 0
        self._is_warned = False
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        # Retries of this thread are of no interest: what comes of them is said once.
        logging.getLogger("urllib3.connectionpool").addFilter(self._is_of_others)
        self._thread.start()

    def tell(self, event: RunEvent) -> None:
        """Let an event be sent. Never waits; an event that is too many is dropped."""
        with self._lock:
            self._unsent += 1
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._warn(f"{EVENTS_MAX} events wait already")

    def close(self) -> None:
        """Wait until all is sent, but no longer than `end_seconds`."""
        self._deadline = time.monotonic() + self._end_seconds
        try:
            self._events.put(None, timeout=self._end_seconds)
        except queue.Full:
            pass
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn(f"no answer within {self._end_seconds:g} s of the end")

    def _run(self) -> None:
        try:
            self._send()
        finally:
            logging.getLogger("urllib3.connectionpool").removeFilter(self._is_of_others)

    def _send(self) -> None:
        while (event := self._events.get()) is not None:
            if time.monotonic() > self._deadline:
                return  # nobody waits any more
            try:
                self._client.emit(event)
            except Exception as error:  # of whichever transport: lineage fails no run
                self._warn(f"{type(error).__name__}: {error}")
            else:
                with self._lock:
                    self._unsent -= 1
                    self._is_warned = False
        try:
            self._client.close(max(0.0, self._deadline - time.monotonic()))
        except Exception as error:
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, reason: str) -> None:
        with self._lock:
            if self._is_warned:
                return
            self._is_warned = True
            unsent = self._unsent
        log.warning(
            "lineage_not_told events=%d: OpenLineage was not told of everything, which changes"
            " nothing of the run: %s",
            unsent,
            reason,
        )

    def _is_of_others(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread.ident
