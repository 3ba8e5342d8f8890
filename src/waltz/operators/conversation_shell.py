"""A connection over which a tool asks one question at a time.

Owns the greeting, the wait for the answer, and the error texts for a silence, a refusal or an end.
Knows no particular question; the codec decides which of the three protocols is spoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from waltz.cluster.store_params import StoreParams
from waltz.errors import (
    ConnectionLostError,
    OperationTimeoutError,
    RemoteStorageError,
    UnavailableError,
    WaltzError,
)
from waltz.host import Connection, Host
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.types import Address
from waltz.wire.admin_protocol import (
    ADMIN_CLIENT_GREETING,
    ADMIN_CODEC,
    AdminOpenRequest,
    AdminSuccessResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Codec, Message, Refusal

T = TypeVar("T", bound=Message)

NOBODY: Final = -1
"""The sequence number of a request that opens a connection."""


class Conversation:
    """Asks one question at a time, each answered within `seconds`."""

    def __init__(self, connection: Connection, link: Link, address: Address, seconds: float):
        self._connection = connection
        self._link = link
        self._address = address
        self._seconds = seconds

    @property
    def version(self) -> int:
        """Return the version that the greeting agreed on."""
        assert self._link.version is not None
        return self._link.version

    def close(self) -> None:
        """End the connection. Needed before its owner asks anything else once a question was given
        up: the answer may still come, and would be taken for the next one's."""
        self._connection.close()

    async def greet(self) -> None:
        """Send and receive a Hello. Raises UnavailableError: the peer does not speak this
        protocol."""
        self._connection.write(self._link.hello())
        try:
            async with asyncio.timeout(self._seconds):
                while self._link.version is None:
                    await self._hear()
        except TimeoutError:
            raise self._silence(self._seconds) from None

    async def ask(self, question: Message, kind: type[T], *, seconds_min: float = 0.0) -> T:
        """Return the answer to `question`, which may take at least `seconds_min`.

        Raises RemoteStorageError: a storage node refused. UnavailableError: no answer in time, or
        none that can be understood; the question may have taken effect.
        """
        seconds = max(self._seconds, seconds_min)
        try:
            async with asyncio.timeout(seconds):
                self._connection.write(self._encoded(question))
                await self._connection.drain()
                while True:
                    for message in await self._hear():
                        if isinstance(message, Refusal):
                            raise RemoteStorageError(f"{self._address} refuses: {message.message}")
                        if isinstance(message, kind):
                            return message
        except TimeoutError:
            raise self._silence(seconds) from None

    def _encoded(self, question: Message) -> bytes:
        try:
            return self._link.encode(question)
        except WaltzError as error:
            raise UnavailableError(
                f"{self._who()} cannot be asked this question: {error}"
            ) from error

    async def _hear(self) -> Sequence[Message]:
        data = await self._connection.read()
        if not data:
            trouble = self._connection.trouble or "it closed the connection"
            # A peer that closes the connection on a question may be another kind of node.
            greeting = self._link.peer_greeting
            who = f"{self._address}, a {greeting!r}" if greeting else self._address
            raise ConnectionLostError(f"no answer from {who}: {trouble}")
        try:
            return self._link.receive(data)
        except WaltzError as error:
            raise UnavailableError(
                f"{self._who()} does not speak the protocol of this question: {error}"
            ) from error

    def _who(self) -> str:
        """Return the address and the node kind that the peer's Hello names: perhaps another port is
        meant."""
        greeting = self._link.peer_greeting
        return f"{self._address}, " + (f"a {greeting!r}," if greeting else "which said no Hello,")

    def _silence(self, seconds: float) -> OperationTimeoutError:
        return OperationTimeoutError(f"no answer from {self._address} in {seconds:g} s")


@asynccontextmanager
async def conversation(
    host: Host, address: Address, codec: Codec, greeting: str, *, seconds: float
) -> AsyncIterator[Conversation]:
    """Connect, and send and receive a Hello. Raises UnavailableError with the reason, and the
    remedy."""
    connection = await host.network.connect(address)
    try:
        talk = Conversation(connection, Link(codec, greeting), address, seconds)
        await talk.greet()
        yield talk
    finally:
        connection.close()


@asynccontextmanager
async def talk_to_admin_port(
    host: Host, address: Address, params: StoreParams, *, seconds: float = HANDSHAKE_SECONDS_MAX
) -> AsyncIterator[Conversation]:
    """Open a connection as tools do. Raises UnavailableError. RemoteStorageError: the node belongs
    to another cluster."""
    async with conversation(
        host, address, ADMIN_CODEC, ADMIN_CLIENT_GREETING, seconds=seconds
    ) as talk:
        request = AdminOpenRequest(NOBODY, params.cluster_key, params.partition_count)
        await talk.ask(request, AdminSuccessResponse)
        yield talk
