"""What a storage node says over HTTP: to probes, to scrapers, and to whoever calls it with curl."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from waltz.storage.exposition import StateCollector
from waltz.storage.metrics import NodeState, health_json
from waltz.system.http import Answer

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


def routes(read: Callable[[], NodeState], *, version: str) -> dict[str, Callable[[], Answer]]:
    """Return the paths and what answers them; `read` gives the node's state of that moment."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(read, version=version))
    ProcessCollector(registry=registry)

    def health() -> Answer:
        """Whether the node can do all it is there for."""
        state = read()
        return _json(health_json(state), 200 if state.is_healthy else 503)

    def live() -> Answer:
        """That the loop turns is all that is asked; restarting a node mends no disk."""
        return Answer(200, TEXT, b"live\n")

    def metrics() -> Answer:
        return Answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))

    def ping() -> Answer:
        """As the original."""
        return Answer(200, TEXT, b"pong\n")

    def build() -> Answer:
        return _json({"service": "waltz-storage", "version": version}, 200)

    return {
        "/health": health,
        "/live": live,
        "/metrics": metrics,
        "/ping": ping,
        "/buildinfo": build,
    }


def _json(value: dict[str, Any], status: int) -> Answer:
    return Answer(status, JSON, json.dumps(value, indent=2).encode() + b"\n")
