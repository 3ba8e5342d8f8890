"""Attacks at the data port and the admin port of a storage node, with TLS and a policy that denies,
and without either; `docs/design/hostile-peers.md` has the table of them, which a test compares.

After each of them the node's directory is, byte for byte, what it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from tests.access.attack_tables import rows_of
from tests.shares import one_in
from tests.storage.support import OTHER_KEY, SESSION, t
from tests.storage.talkers import LOOPBACK, NOBODY, P0, P1, Talker, append, config
from tests.storage.test_gate_shell import (
    ADMIN_FORGERIES,
    ADMIN_OPENING,
    FORGED,
    FORGERIES,
    OPENING,
    Setting,
    content,
    hear_the_end,
    nothing,
    play,
    write_three,
)
from waltz.host import Connection
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import Address, PartitionId, SessionId
from waltz.wire.admin_protocol import ADMIN_CODEC, PartitionAvailableRequest
from waltz.wire.client_protocol import CLIENT_CODEC, CLIENT_GREETING
from waltz.wire.frame import encode_frame
from waltz.wire.handshake import Hello, Link
from waltz.wire.message import Codec, Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    FailureResponse,
    LastSessionInfoRequest,
    MaxTransactionIdRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)

FLOOD: Final = 2_000
"""Connections of a flood."""

GIBIBYTE: Final = 1 << 30
SHORT_SECONDS: Final = 3.0
"""The time in which a peer has to open its connection, for an attack that ends by it."""

LONG_SECONDS: Final = 60.0
"""This time for all other attacks: a busy machine must not cut off those who are served."""

VERSIONS = STORAGE_CODEC.versions


@dataclass
class Ground:
    """A node under attack; `setting` None: it has neither TLS nor a policy."""

    node: StorageNode
    setting: Setting | None

    @property
    def ports(self) -> Sequence[tuple[Address, Codec, Message]]:
        return (
            (self.node.data_address, STORAGE_CODEC, OPENING),
            (self.node.admin_address, ADMIN_CODEC, ADMIN_OPENING),
        )

    async def somebody(self, address: Address, codec: Codec, name: str = "reader") -> Talker:
        """Return somebody who has said Hello; with TLS they have a certificate of `name`."""
        if self.setting is not None:
            return await self.setting.talker(name, address, codec)
        return await Talker.connect(address, codec is ADMIN_CODEC, codec)

    async def server(self) -> Talker:
        """Return a server that is served: its connection is open."""
        server = await self.somebody(self.node.data_address, STORAGE_CODEC, "waltz")
        assert isinstance(await server.ask(OPENING), SuccessResponse)
        return server

    def denials(self) -> int:
        return 0 if self.setting is None else sum(self.setting.denials().values())


async def denied(ground: Ground, name: str, forgeries: Sequence[Sequence[Message]]) -> None:
    """None of `forgeries` is answered but the opening, in any version."""
    assert ground.setting is not None
    for forgery in forgeries:
        for version in VERSIONS:
            before = ground.denials()
            talker = await ground.setting.server(name, version)
            talker.send(*(each for each in forgery if version >= type(each).SINCE))
            assert len(await hear_the_end(talker)) <= 1
            assert ground.denials() == before + 1


async def forged_opens(ground: Ground) -> None:
    for address, codec, opening in ground.ports:
        for name in ("nobody", "reader"):
            stranger = replace(opening, cluster_key=OTHER_KEY)  # type: ignore[type-var]
            talker = await ground.somebody(address, codec, name)
            talker.send(stranger, stranger, opening)
            heard = await hear_the_end(talker)
            assert not any(type(each).__name__.endswith("SuccessResponse") for each in heard)


async def requests_without_an_open(ground: Ground) -> None:
    async def ask(version: int) -> None:
        codec = STORAGE_CODEC.up_to(version)
        talker = await ground.somebody(ground.node.data_address, codec)
        talker.send(append(1, 3, 1), SetLowWaterMarkRequest(FORGED, 1, P0, t(0), False))
        heard = await hear_the_end(talker)
        assert not any(isinstance(each, SuccessResponse) for each in heard)

    await asyncio.gather(*map(ask, VERSIONS))
    tool = await ground.somebody(ground.node.admin_address, ADMIN_CODEC)
    tool.send(ADMIN_FORGERIES[0][1])
    heard = await hear_the_end(tool)
    assert not any(type(each).__name__ == "AdminSuccessResponse" for each in heard)


async def forged_fences(ground: Ground) -> None:
    await denied(ground, "reader", [each for each in FORGERIES if len(each) > 1])


async def sessions_of_others(ground: Ground) -> None:
    forgeries: list[list[Message]] = [
        [OPENING, replace(append(1, 3, 1), session_id=SessionId(session))]
        for session in (-1, SESSION, SESSION + 1, 2**62)
    ]
    forgeries.append([OPENING, MaxTransactionIdRequest(SESSION, 1, P0, True)])
    await denied(ground, "reader", forgeries)
    await denied(ground, "ann", forgeries)


async def partitions_of_others(ground: Ground) -> None:
    places = (P0, PartitionId(2), PartitionId(2**31 - 1))
    forgeries: list[list[Message]] = [
        [OPENING, TruncateRequest(SESSION, 1, place, t(0), False)] for place in places
    ]
    await denied(ground, "half", forgeries)
    assert ground.setting is not None
    half = await ground.setting.server("half")
    half.send(OPENING, TruncateRequest(SESSION, 1, NOBODY, t(0), False))
    _, answer = await half.receive(2)
    assert isinstance(answer, FailureResponse), "there is no such partition"
    half.connection.close()


async def admin_verbs(ground: Ground) -> None:
    assert ground.setting is not None
    forgeries: list[Sequence[Message]] = [
        *ADMIN_FORGERIES,
        [ADMIN_OPENING, PartitionAvailableRequest(1, (P0, P1), False)],
    ]
    for name in ("reader", "waltz", "half"):
        for forgery in forgeries:
            before = ground.denials()
            tool = await ground.setting.tool(name)
            tool.send(*forgery)
            assert len(await hear_the_end(tool)) <= 1
            assert ground.denials() == before + 1


async def other_versions(ground: Ground) -> None:
    """The versions are those of nobody."""
    for address, codec, opening in ground.ports:
        for versions in ((), (-1,), (9, 99), (2**15 - 1, -(2**15)), tuple(range(100, 1100))):
            connection = await opened(ground, address)
            greeting = f"{'Waltz Storage Client' if codec is STORAGE_CODEC else 'a test'}"
            connection.write(Hello(versions, greeting).encode())
            connection.write(encode_frame(0, 0, [b"\x01" * 40]))
            data = b""
            while piece := await connection.read():
                data += piece
            assert type(opening).__name__ not in data.decode("latin-1")
            connection.close()


async def opened(ground: Ground, address: Address) -> Connection:
    """Return a connection on which nothing was said yet, with TLS if there is a policy."""
    if ground.setting is None:
        return await real_host(None).network.connect(address)
    return await ground.setting.unheard("reader", address)


async def endless_frames(ground: Ground) -> None:
    for address, codec, _ in ground.ports:
        early = await opened(ground, address)
        early.write(struct.pack(">i", GIBIBYTE))
        while await early.read():
            pass
        for length in (GIBIBYTE, 2**31 - 1, -1, -(2**31)):
            talker = await ground.somebody(address, codec)
            talker.connection.write(struct.pack(">i", length) + b"x" * 1000)
            await hear_the_end(talker)


async def half_requests(ground: Ground) -> None:
    for address, codec, opening in ground.ports:
        talker = await ground.somebody(address, codec)
        frame = talker.link.encode(opening)
        talker.connection.close()
        for length in range(1, len(frame), 5):
            talker = await ground.somebody(address, codec)
            talker.connection.write(frame[:length])
            talker.connection.flush()
            talker.connection.close()


async def another_protocol(ground: Ground) -> None:
    said = (
        Link(CLIENT_CODEC, CLIENT_GREETING).hello(),
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b'{"create": "/policy"}\n',
        b"\x00\x00\x00\x2d" + b"\x00" * 45,  # ZooKeeper's first request
    )
    for address, codec, _ in ground.ports:
        for data in said:
            connection = await opened(ground, address)
            connection.write(data)
            connection.write(encode_frame(255, 5, [b"\x01" * 40]))
            while await connection.read():
                pass
        for magic in range(0, 256, 17):
            talker = await ground.somebody(address, codec)
            talker.connection.write(encode_frame(magic, 5, [b"\x01" + b"\x00" * 40]))
            await hear_the_end(talker)


async def slow_requests(ground: Ground) -> None:
    """A byte now and then of a Hello that never ends: the whole has to be there in time."""
    for address, _, _ in ground.ports:
        connection = await opened(ground, address)
        ending = asyncio.create_task(connection.read())
        for byte in Hello((0,), "x" * 1000).encode():
            if ending.done():
                break
            connection.write(bytes((byte,)))
            await asyncio.sleep(SHORT_SECONDS / 50)
        while await ending:
            ending = asyncio.create_task(connection.read())


async def flood(ground: Ground) -> None:
    """One address opens more connections than it may have; a server of another is served."""
    await flooded(ground, b"")


async def half_handshakes(ground: Ground) -> None:
    await flooded(ground, client_hello())


async def flooded(ground: Ground, said: bytes) -> None:
    for address, _, _ in ground.ports:
        writers: list[asyncio.StreamWriter] = []
        for _ in range(FLOOD // 2):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
                writer.write(said)
                writers.append(writer)
        server = await ground.server()
        server.send(MaxTransactionIdRequest(SESSION, 2, P0, False))
        await server.receive(1)
        server.connection.close()
        for writer in writers:
            writer.transport.abort()


def client_hello() -> bytes:
    """Return the first bytes of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    session = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


async def plain_speech(ground: Ground) -> None:
    for address, codec, _ in ground.ports:
        for data in (Link(codec, "a test").hello(), b"\x16\x03\x01\xff\xff", b"\x00" * 70_000):
            reader, writer = await asyncio.open_connection(*address)
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                writer.write_eof()
                assert b"Waltz" not in await reader.read()
            writer.close()


async def fences_by_questions(ground: Ground) -> None:
    """`LastSessionInfoRequest` only asks, and would fence out every older session."""
    for version in VERSIONS:
        for session in (FORGED, SessionId(2**62)):
            forgery = [OPENING, LastSessionInfoRequest(session, 1, P0, False)]
            assert ground.setting is not None
            talker = await ground.setting.server("reader", version)
            talker.send(*forgery)
            assert len(await hear_the_end(talker)) <= 1
    server = await ground.server()
    answer = await server.ask(MaxTransactionIdRequest(SESSION, 1, P0, False))
    assert type(answer).__name__ == "MaxTransactionIdResponse", "its session still counts"


@dataclass(frozen=True)
class Attack:
    """`what` and `outcome` are the cells of the page."""

    what: str
    outcome: str
    tried: Callable[[Ground], Awaitable[None]]
    in_plain: bool = True
    """Whether it is tried at a node without TLS and policy, too, where it comes to the same."""
    handshake_seconds: float = LONG_SECONDS


ATTACKS: Final = (
    Attack("shows another cluster's key", "is refused, and cut off", forged_opens),
    Attack(
        "asks without having opened",
        "is refused or cut off",
        requests_without_an_open,
        handshake_seconds=SHORT_SECONDS,
    ),
    Attack("appends, truncates, sets marks, fences", "`server` is denied", forged_fences, False),
    Attack(
        "asks in the name of a later session, which would fence out the others",
        "`server` is denied; the sessions of others go on",
        fences_by_questions,
        False,
    ),
    Attack("uses the sessions of others", "`server` is denied", sessions_of_others, False),
    Attack(
        "may be a server for one partition, and cuts others",
        "`server` is denied",
        partitions_of_others,
        False,
    ),
    Attack(
        "assigns, closes and takes away partitions, with the certificate of a reader or a server",
        "`admin` is denied",
        admin_verbs,
        False,
    ),
    Attack("offers versions that nobody speaks", "is cut off", other_versions),
    Attack("speaks plain, or begins TLS and does not go on", "gets no Hello", plain_speech, False),
    Attack(
        "announces a frame of 1 GiB, or of less than nothing",
        "is cut off",
        endless_frames,
        handshake_seconds=SHORT_SECONDS,
    ),
    Attack("sends parts of requests and goes", "nothing is carried out", half_requests),
    Attack("speaks another protocol", "is cut off", another_protocol),
    Attack(
        "greets byte by byte",
        "is cut off in time",
        slow_requests,
        handshake_seconds=SHORT_SECONDS,
    ),
    Attack("opens 2,000 connections that say nothing", "servers are served", flood),
    Attack("begins 2,000 TLS handshakes", "servers are served", half_handshakes),
)


@pytest.mark.parametrize(
    "attack", one_in(3, ATTACKS), ids=[each.tried.__name__ for each in ATTACKS]
)
def test_nothing_lasts_of_what_somebody_tries_with_tls_and_a_policy(
    tmp_path: Path, attack: Attack
) -> None:
    async def scene(setting: Setting) -> None:
        await attack.tried(Ground(setting.node, setting))

    play(tmp_path, write_three)
    play(tmp_path, nothing)
    before = content(tmp_path)
    assert len(before) > 2
    play(tmp_path, scene, handshake_seconds=attack.handshake_seconds)
    assert content(tmp_path) == before
    play(tmp_path, appends_one)
    assert content(tmp_path) != before, "the comparison sees what lasts"


async def appends_one(setting: Setting) -> None:
    server = await setting.server("waltz")
    assert isinstance(await server.ask(OPENING), SuccessResponse)
    assert isinstance(await server.ask(append(1, 3, 1)), SuccessResponse)


@pytest.mark.parametrize(
    "attack",
    one_in(3, [each for each in ATTACKS if each.in_plain]),
    ids=[each.tried.__name__ for each in ATTACKS if each.in_plain],
)
def test_nothing_lasts_of_what_somebody_tries_without_either(
    tmp_path: Path, attack: Attack
) -> None:
    (tmp_path / "node").mkdir()

    async def main(scene: Callable[[Ground], Awaitable[None]]) -> None:
        seconds = attack.handshake_seconds
        changes = {"handshake_seconds": seconds}
        host = real_host(None, handshake_seconds=seconds)
        node = StorageNode(host, config(tmp_path / "node", data_address=LOOPBACK, **changes))
        await node.start()
        try:
            await scene(Ground(node, None))
        finally:
            await node.stop()

    async def write(ground: Ground) -> None:
        server = await ground.server()
        assert isinstance(await server.ask(append(1, 0, 3)), SuccessResponse)

    async def rest(ground: Ground) -> None: ...

    for scene in (write, rest):
        asyncio.run(asyncio.wait_for(main(scene), 240.0))
    before = content(tmp_path)
    asyncio.run(asyncio.wait_for(main(attack.tried), 240.0))
    assert content(tmp_path) == before


def test_the_page_has_each_attack_and_what_came_of_it() -> None:
    rows = rows_of("At a storage node")
    assert rows == [(each.what, each.outcome, each.tried.__name__) for each in ATTACKS]
