"""The HTTP answers of a process: for probes, for scrapers, and for people with curl."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric as MetricFamily

from waltz.archive.archiver_metrics import ArchiverState
from waltz.archive.archiver_metrics import health_json as archiver_health_json
from waltz.bridge.bridge_metrics import BridgeFigures, bridge_json
from waltz.cli.exposition import (
    archiver_families,
    bridge_families,
    relay_families,
    server_families,
    storage_families,
)
from waltz.metrics import StateCollector
from waltz.outbox.relay_metrics import RelayFigures, relay_json
from waltz.server.clients.consumer_lags import ConsumersState
from waltz.server.server_metrics import ServerState, original_gauges, server_health_json
from waltz.storage.storage_metrics import NodeState, health_json, metrics_json
from waltz.system.http import Answer, Answering, Negotiated

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


def storage_routes(read: Callable[[], NodeState], *, version: str) -> dict[str, Answering]:
    """Return the paths with their handlers; `read` returns the node's state of that moment."""
    return routes_of(
        "waltz-storage",
        version,
        health=lambda: health_json(read()),
        families=lambda: storage_families(read(), version=version),
        figures=lambda: metrics_json(read()),
    )


def server_routes(
    read: Callable[[], ServerState], consumers: Callable[[], ConsumersState], *, version: str
) -> dict[str, Answering]:
    """Return the paths with their handlers; `read` and `consumers` return the state of that
    moment."""
    return routes_of(
        "waltz-server",
        version,
        health=lambda: server_health_json(read()),
        families=lambda: server_families(read(), consumers(), version=version),
        figures=lambda: {"gauges": original_gauges(read())},
    )


def archiver_routes(read: Callable[[], ArchiverState], *, version: str) -> dict[str, Answering]:
    return routes_of(
        "waltz-archiver",
        version,
        health=lambda: archiver_health_json(read()),
        families=lambda: archiver_families(read(), version=version),
        figures=lambda: archiver_health_json(read()),
    )


def relay_routes(read: Callable[[], RelayFigures], *, version: str) -> dict[str, Answering]:
    return routes_of(
        "waltz-outbox",
        version,
        health=lambda: relay_json(read()),
        families=lambda: relay_families(read(), version=version),
        figures=lambda: relay_json(read()),
    )


def bridge_routes(read: Callable[[], BridgeFigures], *, version: str) -> dict[str, Answering]:
    return routes_of(
        "waltz-bridge",
        version,
        health=lambda: bridge_json(read()),
        families=lambda: bridge_families(read(), version=version),
        figures=lambda: bridge_json(read()),
    )


def routes_of(
    service: str,
    version: str,
    *,
    health: Callable[[], dict[str, Any]],
    families: Callable[[], Iterator[MetricFamily]],
    figures: Callable[[], dict[str, Any]],
) -> dict[str, Answering]:
    """Return the paths of one kind of process; the functions return what is known at that
    moment."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(families))
    ProcessCollector(registry=registry)

    def healthy() -> Answer:
        """Answer 200 if the process can do all its work, else 503."""
        found = health()
        return _json(found, 200 if found["healthy"] else 503)

    def live() -> Answer:
        """Answer that the loop turns, and nothing more; restarting a node mends no disk."""
        return Answer(200, TEXT, b"live\n")

    def metrics() -> Answer:
        return Answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))

    def ping() -> Answer:
        """Answer as the original does."""
        return Answer(200, TEXT, b"pong\n")

    def build() -> Answer:
        return _json({"service": service, "version": version}, 200)

    return {
        "/health": healthy,
        "/live": live,
        # The original's tool sends no Accept; scrapers, browsers and curl do.
        "/metrics": Negotiated(text=metrics, json=lambda: _json(figures(), 200)),
        "/ping": ping,
        "/buildinfo": build,
    }


def _json(value: dict[str, Any], status: int) -> Answer:
    return Answer(status, JSON, json.dumps(value, indent=2).encode() + b"\n")
