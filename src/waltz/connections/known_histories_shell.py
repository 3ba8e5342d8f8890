"""The histories of the log, as a process learns them from the servers that it connects to.

Owns what is known of them, and that a connection is used only after the histories of its server
were taken in: a restore takes place while clients live, and the log that they find afterwards may
have other transactions under the IDs that they have applied. A handshake names the newest history,
so nothing is asked as long as that is the one that is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from waltz.cluster.histories import Histories
from waltz.connections.connection_shell import ServerConnection
from waltz.connections.denial_errors import denial_error
from waltz.errors import HistoryChangedError, RemoteProtocolError, UnavailableError
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.wire.denial_protocol import Denied
from waltz.wire.history_protocol import HistoriesAnswer, HistoriesRequest
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.message import Message

A = TypeVar("A", bound=Message)

OnHistories = Callable[[Histories], None]
"""Is called with the histories when they have changed, before any connection is used that could
bring something of them. Raises HistoryChangedError: they must not be followed."""


class KnownHistories:
    """See the module. `current` is None until a server, or the coordinator, has told them."""

    def __init__(self, on_histories: OnHistories) -> None:
        self.current: Histories | None = None
        self._on_histories = on_histories

    async def learn(
        self,
        connection: ServerConnection,
        cluster_key: UUID,
        otherwise: Callable[[], Awaitable[Histories]] | None = None,
    ) -> None:
        """Take in the histories of the server at the other end, of the cluster with that key, or
        what `otherwise` returns if the server does not know them.

        Raises UnavailableError: the server does not answer, or has not noticed a restore, or does
        not know the histories while `otherwise` raises it;
        RemoteProtocolError: it does not keep to the protocol, or the owner refuses the histories.
        """
        known, agreement = self.current, connection.agreement
        if agreement is None or not connection.has(Feature.HISTORY):
            if otherwise is None:
                return
            told = await otherwise()
        elif agreement.history is None:
            told = Histories(cluster_key)
        elif known is not None and known.current == agreement.history:
            return
        else:
            answer = await ask_first(connection, HistoriesRequest(0), HistoriesAnswer)
            told = Histories.told(cluster_key, answer.histories)
        if known == told:
            return
        if known is not None and told.is_before(known):
            raise UnavailableError(
                f"{connection.address} is of the time before the log was restored from an archive"
                f" (history {known.current}): stop that process"
            )
        try:
            self._on_histories(told)
        except HistoryChangedError as error:
            raise RemoteProtocolError(str(error)) from error
        self.current = told


async def ask_first(
    connection: ServerConnection,
    request: Message,
    kind: type[A],
    note: Callable[[Message], None] | None = None,
) -> A:
    """Send `request` on a connection that has no reader yet, and return the answer.

    Other messages before it go to `note`, or are dropped. Raises RemoteProtocolError: the server
    does not know the request; UnavailableError: it does not answer; PermissionDeniedError.
    """
    refused = connection.send([request])
    if refused:
        raise RemoteProtocolError(
            "the server's release cannot be asked about its cluster: give the coordinator's"
            f" address instead, or upgrade the server ({refused[0][1]})"
        )
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            while (messages := await connection.receive()) is not None:
                for index, message in enumerate(messages):
                    if isinstance(message, kind):
                        connection.put_back(messages[index + 1 :])
                        return message
                    if isinstance(message, Denied) and message.request_code == request.CODE:
                        raise denial_error(message)
                    if note is not None:
                        note(message)
    except TimeoutError:
        raise UnavailableError(
            f"{type(request).__name__} was not answered in {HANDSHAKE_SECONDS_MAX:g} s"
        ) from None
    raise UnavailableError("the server ended the connection")
