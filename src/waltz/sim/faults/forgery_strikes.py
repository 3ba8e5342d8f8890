"""Peers outside of the cluster that pretend to be a client or a server of it.

Owns what such a peer sends, in the bytes of the protocols: a mount under another client's ID, and a
question in the name of a session that was never opened. The plan chooses the machines and the time.
A forger has the cluster's key, as has every process that a server has answered.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from zlib import crc32

from waltz.cluster.cluster_shell import read_store_params
from waltz.connections.logical_handshake import Handshake
from waltz.errors import RemoteStorageError, WaltzError
from waltz.host import Connection, Host
from waltz.operators.conversation_shell import conversation
from waltz.sim.faults.kinds import Forgery
from waltz.sim.simulated_cluster import PORT
from waltz.types import NOTHING, Address, ClientId, Generation, PartitionId, RequestId, SessionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    AppendRequest,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import CLIENT_TOKEN_BYTES
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    STORAGE_CLIENT_GREETING,
    STORAGE_CODEC,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    OpenRequest,
    SuccessResponse,
)

PLAIN_VERSION: Final = 4
"""The last version of the original: its clients prove nothing."""

HIGHEST: Final = 2**31 - 1
PATIENCE_SECONDS: Final = 10.0


async def forge(fault: Forgery, host: Host) -> None:
    """Send what `fault` lists to the ports, and hold the mount for its time. No answer, and no
    missing answer, is an error."""
    async with asyncio.TaskGroup() as group:
        for name in fault.storages:
            group.create_task(_ask_for_sessions(fault, host, Address(name, PORT)))
        group.create_task(_mount(fault, host, Address(fault.server, PORT)))


async def _ask_for_sessions(fault: Forgery, host: Host, storage: Address) -> None:
    partition_id = PartitionId(fault.partition_id)
    with suppress(WaltzError):
        params = await read_store_params(host.coordinator)
        async with conversation(
            host, storage, STORAGE_CODEC, STORAGE_CLIENT_GREETING, seconds=PATIENCE_SECONDS
        ) as talk:
            count = params.partition_count
            opening = OpenRequest(SessionId(-1), -1, PartitionId(-1), params.cluster_key, count)
            await talk.ask(opening, SuccessResponse)
            for number, session in enumerate(fault.sessions):
                asked = LastSessionInfoRequest(
                    SessionId(session), number, partition_id, offline=False
                )
                with suppress(RemoteStorageError):
                    await talk.ask(asked, LastSessionInfoResponse)


async def _mount(fault: Forgery, host: Host, server: Address) -> None:
    forged = RequestId(
        ClientId(fault.client_id), Generation(1), PartitionId(fault.partition_id), HIGHEST
    )
    with suppress(WaltzError):
        connection = await host.network.connect(server)
        try:
            forger = _Forger(connection, fault)
            with suppress(TimeoutError, EOFError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    state = await forger.mount(MountRequest(forged, NOTHING, HIGHEST))
                    if state is not MountState.READY and not fault.shows_token:
                        forger.say(
                            AppendRequest(
                                forged, NOTHING, (), (), (), 0, b"forged", crc32(b"forged")
                            )
                        )
            await asyncio.sleep(fault.seconds)
        finally:
            connection.close()


class _Forger:
    """One connection to a server: of the latest version, with a token of its own, or of
    `PLAIN_VERSION`."""

    def __init__(self, connection: Connection, fault: Forgery) -> None:
        self._connection = connection
        self._shows_token = fault.shows_token
        codec = CLIENT_CODEC if fault.shows_token else CLIENT_CODEC.up_to(PLAIN_VERSION)
        self._link = Link(codec, CLIENT_GREETING, opens=True)
        self._logical: LogicalLink

    async def mount(self, request: MountRequest) -> MountState:
        """Return the server's answer. Raises EOFError: it closed the connection."""
        connection, link = self._connection, self._link
        connection.write(link.hello())
        while (rest := link.greet(await self._read())) is None:
            pass
        self._logical = LogicalLink(link, ())
        if self._shows_token:
            token = b"\xee" * CLIENT_TOKEN_BYTES
            connection.write(link.encode(Handshake((), token=token).request))
            while (first := link.receive_first(rest)) is None:
                rest = await self._read()
            rest = first[1]
        link.opened()
        self.say(request)
        heard: list[Message] = [*self._logical.receive(rest)]
        while True:
            for message in heard:
                if isinstance(message, MountResponse):
                    return message.state
            heard = [*self._logical.receive(await self._read())]

    def say(self, message: Message) -> None:
        self._connection.write(self._logical.retain(self._logical.encode(message)))

    async def _read(self) -> bytes:
        if not (data := await self._connection.read()):
            raise EOFError
        return data
