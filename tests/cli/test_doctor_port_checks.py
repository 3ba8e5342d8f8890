"""Checks of ports: by value, and with a socket that holds one."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from waltz.cli.doctor.port_checks import check_port, port_finding, refusal_of
from waltz.recognition import COORDINATOR, SERVER, STORAGE
from waltz.types import Address


@pytest.mark.parametrize(
    ("refusal", "answers", "expected"),
    [
        (None, None, True),
        (errno.EADDRINUSE, SERVER, True),
        (errno.EADDRINUSE, STORAGE, False),
        (errno.EADDRINUSE, None, None),
        (errno.EADDRINUSE, "a port that expects TLS", None),
        (errno.EADDRNOTAVAIL, None, False),
        (errno.EACCES, None, False),
        (errno.EPERM, None, False),
    ],
)
def test_a_port_is_well_if_it_is_free_or_the_node_answers(
    refusal: int | None, answers: str | None, expected: bool | None
) -> None:
    assert port_finding("clients a:1", SERVER, refusal, answers).is_well is expected


def test_a_port_that_is_held_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = Address("127.0.0.1", held.getsockname()[1])
        found = asyncio.run(check_port("clients", address, SERVER))
    assert (found.is_well, found.found) == (None, "in use")
    assert asyncio.run(check_port("clients", address, SERVER)).is_well is True


def test_the_holder_of_a_port_is_recognized() -> None:
    async def main() -> str:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'{"error": "what?"}\n')
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as held:
            port = held.sockets[0].getsockname()[1]
            return (await check_port("clients", Address("127.0.0.1", port), SERVER)).cause

    assert asyncio.run(main()).startswith(COORDINATOR)


def test_an_address_of_another_machine_is_told_from_one_in_use() -> None:
    found = asyncio.run(check_port("clients", Address("192.0.2.1", 7100), SERVER))
    assert (found.is_well, found.cause) == (False, "no interface has the address")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "a" * 70])
def test_a_name_without_an_address_is_not_an_address_of_another_machine(host: str) -> None:
    refusal = refusal_of(Address(host, 7300))
    found = port_finding("clients", "a server", refusal, None)
    assert (found.is_well, found.found) == (False, "no address")
    assert "does not know the host name" in found.cause
