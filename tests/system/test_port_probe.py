"""What is said of a port where a ZooKeeper was looked for; of every kind: `test_recognition.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from waltz.system import port_probe
from waltz.system.port_probe import what_answers


async def asked(*answers: bytes | None) -> tuple[str | None, list[int]]:
    """Ask listeners that answer like that, one address each; None: nothing, without an end."""

    def served(answer: bytes | None) -> Callable[..., object]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answer is None:
                await reader.read()
            else:
                await reader.readline()
                for each in answer:  # however it is cut into pieces
                    writer.write(bytes([each]))
                    await writer.drain()
            writer.close()

        return serve

    servers = [await asyncio.start_server(served(each), "127.0.0.1", 0) for each in answers]  # type: ignore[arg-type]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    try:
        return await what_answers(",".join(f"127.0.0.1:{port}" for port in ports) + "/root"), ports
    finally:
        for server in servers:
            server.close()


def test_those_that_are_no_zookeeper_are_named_with_their_addresses() -> None:
    found, ports = asyncio.run(asked(b"HTTP/1.1 400 Bad", b"Zookeeper version: 3.9", b'{"error"'))
    assert found == (
        f"an HTTP port answers at 127.0.0.1:{ports[0]}, the embedded coordinator answers at"
        f" 127.0.0.1:{ports[2]}; expected a ZooKeeper: give the address of a ZooKeeper"
    )


def test_what_is_not_known_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_probe, "PROBE_SECONDS_MAX", 0.2)
    for answer in (b"", b"SSH-2.0-", b"x" * 1000, None):
        assert asyncio.run(asked(answer))[0] is None
    assert asyncio.run(what_answers("nowhere,127.0.0.1:1")) is None
