"""Attacks at the port of a server that has TLS and a policy that denies; nothing of it
may last. `docs/design/hostile-peers.md` has the table of these attacks, which a test compares.

Somebody has a certificate of the cluster's CA that no grant names, or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.access.attack_tables import rows_of
from tests.client.fake_cluster import until
from tests.server.builders import PARTITION, append, flush, mount, together
from tests.server.test_enforcement_shell import Peer, Setting, mark, play
from waltz.connections.connection_shell import RESTORED, ServerConnection
from waltz.types import ClientId, PartitionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    AddPreferredPartitionRequest,
    MountResponse,
    RemovePreferredPartitionRequest,
)
from waltz.wire.cut_protocol import HoldRequest
from waltz.wire.denial_protocol import Denied
from waltz.wire.discovery_protocol import ClientIdRequest, TopologyRequest
from waltz.wire.frame import encode_frame
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import (
    MAGIC_BYTES,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    Feature,
)
from waltz.wire.message import Message
from waltz.wire.storage_protocol import OpenRequest

FLOOD: Final = 2_000
"""Connections of a flood."""

GIBIBYTE: Final = 1 << 30
VERSIONS = CLIENT_CODEC.versions


def durable(directory: Path) -> dict[str, str]:
    """Return the digest of each file of the coordinator and of the storage node."""
    files = [directory / "coordinator.json", *(directory / "storage").rglob("*")]
    return {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


async def told(peer: Peer, *messages: Message) -> list[str]:
    """Say `messages`, and return the verbs that were denied by the time of the connection's end,
    which a message that no client may send brings about."""
    peer.say(*messages, MountResponse(flush().request_id, 0))  # type: ignore[arg-type]
    await peer.is_ended()
    others = [each for each in peer.heard if not isinstance(each, Denied)]
    assert others == [], "an answer"
    return [each.verb for each in peer.heard if isinstance(each, Denied)]


def at(message: Message, partition_id: int, client: int) -> Message:
    request_id = message.request_id._replace(  # type: ignore[attr-defined]
        partition_id=PartitionId(partition_id), client_id=ClientId(client)
    )
    return replace(message, request_id=request_id)  # type: ignore[type-var]


async def refuses(setting: Setting, name: str, messages: Iterable[Message], *verbs: str) -> None:
    """Each of `messages` is denied in each version, on a connection of its own."""
    for message in messages:
        for version in VERSIONS:
            if version < type(message).SINCE:
                continue
            before = sum(setting.denials().values())
            peer = await setting.peer(name, version, *[Feature.DENIALS][: version == 5])
            denied = await told(peer, message)
            assert denied == ([*verbs] if version == 5 else [])
            assert sum(setting.denials().values()) == before + 1


async def forged_mounts(setting: Setting) -> None:
    partitions = range(PARTITION + 1)
    mounts = [at(mount(), place, client) for place in partitions for client in (-1, 0, 7)]
    await refuses(setting, "nobody", mounts, "read")
    assert all(each.mounts == 0 for each in setting.server.state().partitions)


async def forged_appends(setting: Setting) -> None:
    appends = [append(1), at(append(2), 0, 8), together(append(1), append(2))]
    await refuses(setting, "nobody", appends, "append")


async def other_partitions(setting: Setting) -> None:
    for place in range(PARTITION):
        await refuses(setting, "orders", [at(mount(), place, 7)], "read")
        await refuses(setting, "orders", [at(append(1), place, 7)], "append")


async def other_headers(setting: Setting) -> None:
    appends = [replace(append(1), header=header) for header in (-1, 1, 5, 2**31 - 1)]
    await refuses(setting, "orders", appends, "append")


async def changes_of_the_cluster(setting: Setting) -> None:
    request_id = flush().request_id
    preferences = [
        AddPreferredPartitionRequest(request_id, (PartitionId(0), PARTITION)),
        RemovePreferredPartitionRequest(request_id, (PartitionId(0),)),
    ]
    await refuses(setting, "orders", preferences, "prefer")
    await refuses(setting, "orders", [HoldRequest(1, 5)], "cut")
    assert setting.server.state().preferred_partitions == ()


async def client_ids(setting: Setting) -> None:
    await refuses(setting, "nobody", [ClientIdRequest(1), TopologyRequest(True)], "connect")


async def replayed_connection_id(setting: Setting) -> None:
    address = setting.server.address
    there = await ServerConnection.open(setting.someone("orders"), address, RESTORED)
    agreement = there.agreement
    assert agreement is not None
    for name in ("nobody", "spark"):
        connection = await setting.someone(name).network.connect(address)
        link = Link(CLIENT_CODEC, CLIENT_GREETING, opens=True)
        connection.write(link.hello())
        while (rest := link.greet(await connection.read())) is None:
            pass
        request = ConnectionRestoreRequest(MAGIC_BYTES, agreement.connection_id, 0, 1)
        connection.write(link.encode(request))
        while (first := link.receive_first(rest)) is None:
            rest = await connection.read()
        answer, _ = first
        assert isinstance(answer, ConnectionRestoreResponse)
        assert not answer.restored
        connection.close()
    assert there.is_carried
    there.close()


async def without_tls(setting: Setting) -> None:
    hello = Link(CLIENT_CODEC.up_to(0), CLIENT_GREETING).hello()
    for data in (hello, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x00" * 70_000):
        assert CLIENT_GREETING.encode() not in await said_in_plain(setting, data)


async def said_in_plain(setting: Setting, data: bytes) -> bytes:
    """Send `data` in plain, and return what comes until the server ends the connection."""
    reader, writer = await asyncio.open_connection(*setting.server.address)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 120.0)
    return b""


async def endless_frames(setting: Setting) -> None:
    for version in VERSIONS:
        peer = await setting.peer("nobody", version)
        peer.connection.write(struct.pack(">i", GIBIBYTE) + b"x" * 1000)
        await peer.is_ended()
    early = await setting.someone("nobody").network.connect(setting.server.address)
    early.write(struct.pack(">i", GIBIBYTE))
    while await early.read():
        pass


async def half_requests(setting: Setting) -> None:
    frame = CLIENT_CODEC.encode(append(1), 4)
    for length in range(1, len(frame), 7):
        peer = await setting.peer("nobody", 4)
        peer.connection.write(frame[:length])
        peer.connection.flush()
        peer.connection.close()


async def another_protocol(setting: Setting) -> None:
    for magic in range(0, 256, 17):
        peer = await setting.peer("nobody", 5)
        peer.connection.write(encode_frame(magic, 5, [bytes([OpenRequest.CODE]) + b"\x00" * 40]))
        await peer.is_ended()


async def flood(setting: Setting) -> None:
    """One address opens more connections than it may have; a client of another address is served
    meanwhile."""
    opened: list[asyncio.StreamWriter] = []
    for _ in range(FLOOD):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(
                *setting.server.address, local_addr=("127.0.0.2", 0)
            )
            opened.append(writer)
    orders = await setting.peer("orders", 5)
    await orders.mount(client=8)
    orders.connection.close()
    for writer in opened:
        writer.close()


@dataclass(frozen=True)
class Attack:
    """`what` and `outcome` are the cells of the page."""

    what: str
    outcome: str
    tried: Callable[[Setting], Awaitable[None]]


ATTACKS: Final = (
    Attack("mounts each partition, under client IDs of others", "`read` is denied", forged_mounts),
    Attack("appends without a mount, alone and in batches", "`append` is denied", forged_appends),
    Attack(
        "mounts partitions that are granted to others, and appends there",
        "`read` and `append` are denied",
        other_partitions,
    ),
    Attack("appends with headers of others", "`append` is denied", other_headers),
    Attack(
        "moves preferred partitions, and has servers hold",
        "`prefer` and `cut` are denied",
        changes_of_the_cluster,
    ),
    Attack("takes client IDs, and asks where the servers are", "`connect` is denied", client_ids),
    Attack(
        "restores the connection of another principal by its ID",
        "is told that there is none; the connection goes on",
        replayed_connection_id,
    ),
    Attack("speaks plain, or begins TLS and does not go on", "gets no Hello", without_tls),
    Attack("announces a frame of 1 GiB", "is cut off", endless_frames),
    Attack("sends parts of requests and goes", "nothing is served", half_requests),
    Attack("speaks another protocol", "is cut off", another_protocol),
    Attack(
        "opens 2,000 connections that say nothing", "clients of other addresses are served", flood
    ),
)

POLICY: Final = """
version: 1
mode: deny
default: deny
roles:
  orders: {verbs: [append, read], partitions: 3, headers: 0}
  spark: {verbs: [read], partitions: all}
grants:
  "spiffe://tests/orders": [orders]
  "spiffe://tests/spark": [spark]
"""


@pytest.mark.parametrize("attack", ATTACKS, ids=[each.tried.__name__ for each in ATTACKS])
def test_nothing_lasts_of_what_somebody_tries(tmp_path: Path, attack: Attack) -> None:
    async def scene(setting: Setting) -> None:
        before = durable(tmp_path)
        assert "coordinator.json" in before
        assert len(before) > PARTITION
        await attack.tried(setting)
        await asyncio.sleep(0)
        assert durable(tmp_path) == before
        assert mark(setting.server) == -1
        orders = await setting.peer("orders", 5)
        await orders.mount(client=9)
        orders.say(append(1, client=9))
        await until(lambda: mark(setting.server) == 0)
        assert durable(tmp_path) != before, "the comparison sees what lasts"

    play(tmp_path, scene, POLICY)


def test_the_page_has_each_attack_and_what_came_of_it() -> None:
    rows = rows_of("At a server with a policy")
    assert rows == [(each.what, each.outcome, each.tried.__name__) for each in ATTACKS]
