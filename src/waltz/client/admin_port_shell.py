"""Opens a connection to the port of a storage node that tools use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from waltz.client.conversation_shell import Conversation, conversation
from waltz.cluster.store_params import StoreParams
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.types import Address
from waltz.wire.admin_protocol import (
    ADMIN_CLIENT_GREETING,
    ADMIN_CODEC,
    AdminOpenRequest,
    AdminSuccessResponse,
)

NOBODY: Final = -1
"""The sequence number of a request that opens a connection."""


@asynccontextmanager
async def talk_to_admin_port(
    host: Host, address: Address, params: StoreParams, *, seconds: float = HANDSHAKE_SECONDS_MAX
) -> AsyncIterator[Conversation]:
    """Open a connection as tools do. Raises UnavailableError. RemoteStorageError: the node is of
    another cluster."""
    async with conversation(
        host, address, ADMIN_CODEC, ADMIN_CLIENT_GREETING, seconds=seconds
    ) as talk:
        request = AdminOpenRequest(NOBODY, params.cluster_key, params.partition_count)
        await talk.ask(request, AdminSuccessResponse)
        yield talk
