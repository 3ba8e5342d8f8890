"""`waltz bridge`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "http": CommandPlace(
        "waltz.cli.bridge_http",
        "bridge_to_http",
        "Post the transactions of a cluster to a webhook.",
    ),
    "kafka": CommandPlace(
        "waltz.cli.bridge_kafka",
        "bridge_to_kafka",
        "Send the transactions of a cluster to a Kafka topic, each once.",
    ),
    "status": CommandPlace(
        "waltz.cli.bridge_place", "bridge_status", "Show how far a bridge is, and what it lacks."
    ),
    "skip": CommandPlace(
        "waltz.cli.bridge_place", "skip_range", "Leave out transactions at which a partition waits."
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def bridge() -> None:
    """Deliver the transactions of a cluster, in order, to a webhook or to a Kafka topic.

    FILE is YAML: bridge.cluster, and for a webhook bridge.url, bridge.secretFile, bridge.progress,
    for Kafka bridge.kafka.servers, bridge.kafka.topic, bridge.kafka.name, and if need be others;
    all of them are in docs/operating/bridge-configuration.md.
    """
