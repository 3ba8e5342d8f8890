"""`waltz server --workers`: several servers of one configuration, one process each.

Owns which address each of them has. They are members of the cluster like any others: the cluster
spreads the partitions over them, and so over the machine's cores.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from waltz.cli.children import STOP_SECONDS_MAX, Child, Keeper
from waltz.cli.nodes import until_told
from waltz.configuration.access_settings import AUDIT_FILE
from waltz.configuration.server_settings import (
    ADVERTISED_ADDRESS,
    PREFERRED_PARTITIONS,
    SHUTDOWN_TIMEOUT,
    client_address,
    http_address,
)
from waltz.configuration.settings import Settings
from waltz.errors import ConfigurationError
from waltz.types import Address

log = logging.getLogger(__name__)

PORT_MAX = 2**16 - 1


def _log_trouble(markup: str) -> None:
    from rich.text import Text

    log.warning("worker_trouble text=%s", Text.from_markup(markup).plain)


def worker_addresses(settings: Settings, number: int) -> list[str]:
    """Return the options that give the worker, counted from 0, addresses of its own: the configured
    ports plus the worker's number.

    Raises ConfigurationError: a port above the highest one.
    """
    given: list[tuple[str, Address | None]] = [
        ("--address", client_address(settings)),
        ("--advertised", settings.get(ADVERTISED_ADDRESS)),
        ("--http-address", http_address(settings)),
    ]
    options: list[str] = []
    for option, address in given:
        if address is None:
            continue
        port = address.port + number
        if port > PORT_MAX:
            raise ConfigurationError(
                f"{option} {address}: worker {number} would have port {port}; expected at most"
                f" {PORT_MAX}"
            )
        options += [option, str(Address(address.host, port))]
    return options


class ServerWorkers:
    """The servers as one node: started together, kept running, and stopped together."""

    def __init__(self, settings: Settings, arguments: Sequence[str], count: int) -> None:
        """`arguments`: those of the command, without addresses. Raises ConfigurationError."""
        if settings.get(PREFERRED_PARTITIONS):
            raise ConfigurationError(
                f"{PREFERRED_PARTITIONS.name} with {count} workers: all of them would prefer the"
                " same partitions; give each server a file of its own"
            )
        if settings.get(AUDIT_FILE) is not None:
            raise ConfigurationError(
                f"{AUDIT_FILE.name} with {count} workers: an audit log is written by one process;"
                " give each server a file of its own"
            )
        self._keeper = Keeper(
            [
                Child(
                    f"worker-{number}",
                    "server",
                    ["server", *arguments, *worker_addresses(settings, number)],
                    None,
                )
                for number in range(count)
            ],
            say=_log_trouble,
        )

    async def start(self) -> None:
        await self._keeper.start()
        for child in self._keeper.children:
            assert child.process is not None
            log.info("worker_started name=%s pid=%d", child.name, child.process.pid)

    async def run(self) -> None:
        await self._keeper.run()

    async def stop(self) -> None:
        await self._keeper.stop()


async def run_workers(
    settings: Settings, arguments: Sequence[str], count: int, *, end_with_stdin: bool
) -> None:
    """Run `count` servers until told to stop. Raises ConfigurationError."""
    await until_told(
        ServerWorkers(settings, arguments, count),
        end_with_stdin=end_with_stdin,
        shutdown_seconds=settings[SHUTDOWN_TIMEOUT] + STOP_SECONDS_MAX,
    )
