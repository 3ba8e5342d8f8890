"""The HTTP port of a pipeline that runs: /health, /live and /metrics, served by a thread.

Spark keeps the main thread for minutes; a scraper is answered meanwhile with what is known. Owns
the prefix of the names. Imported only if there is a port.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client.metrics_core import InfoMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

from waltz.cli.nodes import Routes, installed_version
from waltz.cli.probes import routes_of
from waltz.metrics import families
from waltz.spark.followed_metrics import (
    FOLLOWED_PARTITION_METRICS,
    PIPELINE_FAMILIES,
    PIPELINE_METRICS,
    PipelineState,
    pipeline_json,
)
from waltz.system.http import HttpServer
from waltz.types import PLAIN_HTTP, Address, HttpAccess

PIPELINE_PREFIX: Final = "waltz_pipeline_"


def pipeline_families(state: PipelineState, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of a pipeline, then of the partitions that it follows."""
    yield InfoMetricFamily(
        "waltz_pipeline",
        "Which pipeline this is.",
        {"kind": state.kind, "target": state.target, "version": version},
    )
    yield from families(PIPELINE_PREFIX, [], [([], state)], PIPELINE_METRICS, PIPELINE_FAMILIES)
    yield from families(
        PIPELINE_PREFIX,
        ["partition"],
        [([str(each.partition_id)], each) for each in state.partitions],
        FOLLOWED_PARTITION_METRICS,
    )


def pipeline_routes(read: Callable[[], PipelineState]) -> Routes:
    """Return the paths with their handlers; `read` returns the state of that moment."""
    version = installed_version()
    return routes_of(
        "waltz-pipeline",
        version,
        health=lambda: pipeline_json(read()),
        families=lambda: pipeline_families(read(), version=version),
        figures=lambda: pipeline_json(read()),
    )


@contextmanager
def served(
    address: Address, read: Callable[[], PipelineState], access: HttpAccess = PLAIN_HTTP
) -> Iterator[str]:
    """Answer scrapers at `address` until the block ends; yield the URL, with the real port. Raises
    ConfigurationError: it cannot be listened on, or a file of `access` cannot be used."""
    routes = pipeline_routes(read)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="metrics", daemon=True)
    thread.start()
    try:
        server = HttpServer(routes, access=access)
        asyncio.run_coroutine_threadsafe(server.start(address), loop).result()
        try:
            yield server.url
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
