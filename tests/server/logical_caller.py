"""A client of version 5 that says and hears single messages, and can break off and go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Self, TypeVar

from waltz.connections.logical_handshake import Handshake
from waltz.host import Connection, Host
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import CLIENT_CODEC, CLIENT_GREETING, HighWaterMarkRequest
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import (
    MAGIC_BYTES,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    HandshakeRequest,
    HandshakeResponse,
)
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message

T = TypeVar("T", bound=Message)

QUESTION = HighWaterMarkRequest(RequestId(ClientId(7), Generation(0), PartitionId(0), 1))


class LogicalCaller:
    """`agreed` is the server's answer to the handshake."""

    def __init__(self, host: Host, address: Address) -> None:
        self.host = host
        self.address = address
        self.connection: Connection
        self.agreed: HandshakeResponse
        self.link: LogicalLink
        self.heard: list[Message] = []
        self.attempts = 0
        self._opening: Link
        self._rest = b""

    @classmethod
    async def connect(
        cls, host: Host, address: Address, request: HandshakeRequest | None = None
    ) -> Self:
        """EOFError: the server hung up."""
        caller = cls(host, address)
        answer = await caller.introduce(request or Handshake().request)
        assert isinstance(answer, HandshakeResponse), answer
        caller.agreed = answer
        if not answer.error_code:
            caller._opening.opened()
            caller.link = LogicalLink(caller._opening, answer.features)
            caller.heard = [*caller.link.receive(caller._rest)]
        return caller

    async def introduce(self, request: Message) -> Message:
        """Say `request` first on a new connection, and return the answer."""
        self.connection = await self.host.network.connect(self.address)
        link = self._opening = Link(CLIENT_CODEC, CLIENT_GREETING, opens=True)
        self.connection.write(link.hello())
        while (rest := link.greet(await self._read())) is None:
            pass
        return await self.ask_first(request, rest)

    async def ask_first(self, request: Message, rest: bytes = b"") -> Message:
        self.connection.write(self._opening.encode(request))
        while (first := self._opening.receive_first(rest)) is None:
            rest = await self._read()
        answer, self._rest = first
        return answer

    async def restore(self, **changes: object) -> ConnectionRestoreResponse:
        """Present the ID on a new connection; `changes` are what the request has instead."""
        self.attempts += 1
        request = ConnectionRestoreRequest(
            MAGIC_BYTES, self.agreed.connection_id, self.link.received, self.attempts
        )
        answer = await self.introduce(replace(request, **changes))  # type: ignore[arg-type]
        assert isinstance(answer, ConnectionRestoreResponse), answer
        if answer.restored:
            again = self.link.resume(answer.received)
            assert again is not None
            self.connection.write(again)
            self.heard += self.link.receive(self._rest)
        return answer

    def break_off(self) -> None:
        self.connection.close()
        self.link.break_off()

    def say(self, *messages: Message) -> None:
        data = self.link.retain(b"".join(map(self.link.link.encode, messages)))
        if not self.link.retained.is_broken:
            self.connection.write(data)

    async def hear(self, kind: type[T]) -> T:
        """Return the next message of that kind. EOFError: the server hung up."""
        while True:
            while not self.heard:
                self.heard += self.link.receive(await self._read())
                self.connection.write(self.link.take_replies())
            message = self.heard.pop(0)
            if isinstance(message, kind):
                return message

    async def ends(self) -> str | None:
        """Return, once the server has hung up, why it gave the connection up."""
        try:
            while True:
                self.heard += self.link.receive(await self._read())
        except EOFError:
            return self.link.end_reason

    async def _read(self) -> bytes:
        if not (data := await self.connection.read()):
            raise EOFError
        return data
