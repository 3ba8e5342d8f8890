"""Opens the transport to one node. `NodeConnection` decides the order of attempts."""

from __future__ import annotations

import logging

from waltz.connections.node_connection import (
    ConnectionWanted,
    Event,
    NodeConnection,
    NodeFound,
    NodeNotFound,
    NotResolved,
    OpenTransport,
    Resolve,
    Resolved,
    TransportFailed,
    TransportOpened,
)
from waltz.errors import ConnectionFailedError
from waltz.host import Connection, Host
from waltz.types import Address

logger = logging.getLogger(__name__)


async def open_transport(host: Host, address: Address) -> Connection:
    """Resolve `address` and connect to the addresses found, in random order, until one accepts.

    Raises ConnectionFailedError: none accepts; the text has the reason of each.
    """
    machine = NodeConnection(address)
    event: Event = ConnectionWanted()
    connection: Connection | None = None
    while True:
        (effect,) = machine.step([event], host.clock.now())
        match effect:
            case Resolve():
                event = await _resolve(host, effect.address)
            case OpenTransport():
                try:
                    connection = await host.network.connect(effect.address, name=address.host)
                    event = TransportOpened()
                except ConnectionFailedError as error:
                    logger.info("transport_failed node=%s error=%s", address, error)
                    event = TransportFailed(str(error))
            case NodeFound():
                assert connection is not None
                return connection
            case NodeNotFound():
                raise ConnectionFailedError(effect.reason)


async def _resolve(host: Host, address: Address) -> Event:
    try:
        found = await host.network.resolve(address)
    except ConnectionFailedError as error:
        logger.info("not_resolved node=%s error=%s", address, error)
        return NotResolved(str(error))
    # A single address needs no order: nothing is drawn.
    draws = [host.random.uniform(0.0, 1.0) for _ in found] if len(found) > 1 else [0.0]
    return Resolved(found, draws)
