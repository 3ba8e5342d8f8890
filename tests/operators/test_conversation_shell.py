"""One question at a time, with everybody who may be at the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from waltz.errors import RemoteStorageError, UnavailableError
from waltz.host import Connection
from waltz.operators.conversation_shell import Conversation, conversation
from waltz.operators.questions_shell import NOBODY
from waltz.system.real_host import real_host
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address, Plain, TlsSettings
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    AdminFailureResponse,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    PartitionAccessRequest,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CheckStorageConnectivityResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Codec, Message

LOOPBACK = Address("127.0.0.1", 0)
SECONDS = 20.0


def talk(
    accept: Callable[[Connection], Awaitable[None]],
    ask: Callable[[Conversation], Awaitable[None]],
    *,
    seconds: float = SECONDS,
    network: RealNetwork | None = None,
) -> None:
    async def main() -> None:
        listener = await (network or RealNetwork()).listen(LOOPBACK, accept)
        try:
            async with conversation(
                real_host(None), listener.address, ADMIN_CODEC, "a test", seconds=seconds
            ) as found:
                await ask(found)
        finally:
            await listener.close()

    asyncio.run(main())


def answering(*answers: Message, codec: Codec = ADMIN_CODEC) -> Callable[..., Awaitable[None]]:
    """The other side: greet, and give these answers at once to the first question."""

    async def accept(connection: Connection) -> None:
        link = Link(codec, "the other side")
        connection.write(link.hello())
        asked: Sequence[Message] = ()
        while not asked and (data := await connection.read()):
            asked = link.receive(data)
        for answer in answers:
            connection.write(link.encode(answer))
        while await connection.read():
            """Until the tool ends it."""

    return accept


async def ask_status(found: Conversation) -> None:
    answer = await found.ask(AssignedPartitionStatusRequest(7), AssignedPartitionStatusResponse)
    assert answer == AssignedPartitionStatusResponse(7, ())


def test_the_answer_is_what_was_asked_for_and_nothing_else() -> None:
    talk(answering(AdminSuccessResponse(3), AssignedPartitionStatusResponse(7, ())), ask_status)


def test_a_refusal_is_an_error_with_its_text() -> None:
    with pytest.raises(RemoteStorageError, match=r"127.0.0.1:\d+ refuses: keys differ"):
        talk(answering(AdminFailureResponse(7, "keys differ", ())), ask_status)


def test_a_silent_one_is_waited_for_no_longer_than_said() -> None:
    with pytest.raises(UnavailableError, match=r"no answer from 127.0.0.1:\d+ in 0.2 s"):
        talk(answering(), ask_status, seconds=0.2)

    async def mute(_: Connection) -> None:
        await asyncio.Event().wait()

    with pytest.raises(UnavailableError, match=r"no answer from 127.0.0.1:\d+ in 0.2 s"):
        talk(mute, ask_status, seconds=0.2)


def test_one_that_hangs_up_is_named() -> None:
    async def rude(_: Connection) -> None: ...

    with pytest.raises(UnavailableError, match=r"no answer from 127.0.0.1:\d+: it ended the"):
        talk(rude, ask_status)


def test_one_that_takes_tls_only_is_told_apart_with_the_remedy() -> None:
    """TS-01: neither reachable nor hung up."""
    network = RealNetwork(TlsSettings(plain=Plain.NEVER))
    with pytest.raises(UnavailableError, match=r"it takes TLS only, .* --tls-ca"):
        talk(answering(), ask_status, network=network)


def test_another_protocol_is_no_answer() -> None:
    async def server(connection: Connection) -> None:
        link = Link(CLIENT_CODEC, "a server")
        connection.write(link.hello())
        while link.version is None:
            link.receive(await connection.read())
        connection.write(link.encode(CheckStorageConnectivityResponse(NOBODY, ())))
        while await connection.read():
            """Until the tool ends it."""

    with pytest.raises(UnavailableError, match="a 'a server', does not speak the protocol"):
        talk(server, ask_status)


def test_what_an_old_one_does_not_know_is_not_asked() -> None:
    old = Codec(ADMIN_CODEC.magic, (0,), [AdminSuccessResponse])

    async def ask(found: Conversation) -> None:
        await found.ask(PartitionAccessRequest(1, (), True, True), AdminSuccessResponse)

    with pytest.raises(
        UnavailableError, match="a 'the other side', cannot be asked this question: Part"
    ):
        talk(answering(codec=old), ask)


def test_nobody_there_is_said_with_the_address() -> None:
    async def main() -> None:
        async with conversation(
            real_host(None), Address("127.0.0.1", 1), CLIENT_CODEC, "a test", seconds=SECONDS
        ) as found:
            await found.ask(ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse)

    with pytest.raises(UnavailableError, match=r"no connection to 127.0.0.1:1"):
        asyncio.run(main())
