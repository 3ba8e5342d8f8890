"""The client side of the embedded coordinator.

Owns one connection, the calls that wait on it, and reconnecting after a loss. `embedded_server.py`
owns the meaning of the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from waltz.errors import ConnectionFailedError, CoordinatorLostError, RemoteProtocolError
from waltz.host import ANY_VERSION, Connection, Network, Node
from waltz.limits import (
    COORDINATOR_CALL_SECONDS_MAX,
    COORDINATOR_GRACE_SECONDS,
    COORDINATOR_RETRY_SECONDS_MAX,
    COORDINATOR_RETRY_SECONDS_MIN,
    HANDSHAKE_SECONDS_MAX,
)
from waltz.recognition import COORDINATOR, FIRST_BYTES_MAX, recognized
from waltz.system.clock import RealClock
from waltz.system.embedded_lines import (
    CALL_ERRORS,
    PROTOCOL_VERSION,
    Lines,
    data_from_json,
    data_to_json,
    line,
)
from waltz.system.random import RealRandom
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address

logger = logging.getLogger(__name__)


class _AnswerLostError(CoordinatorLostError):
    """The connection ended after the call was sent."""


class EmbeddedCoordinator:
    """Implements `host.Coordinator` on a connection to an `EmbeddedCoordinatorServer`.

    Connects with the first call, and again by itself. A call waits for a lost connection up to
    `call_seconds_max` and then raises CoordinatorLostError. `read`, `children` and
    `changed` survive a connection lost under them; the other calls raise CoordinatorLostError at
    once, because nobody knows whether they took effect. After a session has ended, a new one begins
    by itself: the ephemeral nodes of the old one are gone.
    """

    def __init__(
        self,
        address: Address,
        network: Network | None = None,
        *,
        call_seconds_max: float = COORDINATOR_CALL_SECONDS_MAX,
    ) -> None:
        self._address = address
        self._call_seconds_max = call_seconds_max
        self._clock = RealClock()
        self._network = network or RealNetwork()
        self._random = RealRandom()
        self._session: str | None = None
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._trouble = "not connected yet"
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._next_request_id = 0
        self._heard = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def read(self, path: str) -> Node:
        data, version, child_version, is_own = await self._call_again("read", path=path)
        return Node(data_from_json(data), version, child_version, is_own, self._session)

    async def children(self, path: str) -> Sequence[str]:
        names: list[str] = await self._call_again("children", path=path)
        return names

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return str(
            await self._call(
                "create",
                path=path,
                data=data_to_json(data),
                ephemeral=ephemeral,
                sequential=sequential,
            )
        )

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        return int(await self._call("write", path=path, data=data_to_json(data), version=version))

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        await self._call("delete", path=path, version=version)

    async def changed(self, path: str, seen: Node | None) -> None:
        known = None if seen is None else [seen.version, seen.child_version]
        while True:
            await self._connected_connection()
            if seen is not None and seen.session not in (None, self._session):
                return
            with contextlib.suppress(_AnswerLostError):
                await self._call("changed", path=path, seen=known)
                return

    async def close(self) -> None:
        if self._connection is not None and not self._closed:
            try:
                async with asyncio.timeout(COORDINATOR_GRACE_SECONDS):
                    await self._call("end")
            except (TimeoutError, CoordinatorLostError):
                pass  # the server notices the end by itself
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._connected.set()  # wakes the calls that wait, to find it closed

    # Calls

    async def _call_again(self, call: str, **arguments: Any) -> Any:
        while True:
            try:
                return await self._call(call, **arguments)
            except _AnswerLostError:
                continue

    async def _call(self, call: str, **arguments: Any) -> Any:
        """Make a call and return its result. Raises CoordinatorLostError; if the call was sent, its
        subclass _AnswerLostError."""
        connection = await self._connected_connection()
        self._next_request_id += 1
        request_id = self._next_request_id
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        connection.write(line(id=request_id, call=call, **arguments))
        try:
            return await answer
        except asyncio.CancelledError:
            connection.write(line(forget=request_id))
            raise
        finally:
            self._pending.pop(request_id, None)

    async def _connected_connection(self) -> Connection:
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._keep_connected())
        try:
            async with asyncio.timeout(self._call_seconds_max):
                while self._connection is None and not self._closed:
                    await self._connected.wait()
        except TimeoutError as error:
            raise CoordinatorLostError(
                f"no coordinator at {self._address}: {self._trouble}"
            ) from error
        if self._closed or self._connection is None:
            raise CoordinatorLostError("this process has closed its connection to the coordinator")
        return self._connection

    # The connection

    async def _keep_connected(self) -> None:
        pause = COORDINATOR_RETRY_SECONDS_MIN
        while True:
            try:
                connection = await self._network.connect(self._address)
            except ConnectionFailedError as error:
                self._trouble = str(error)
                await asyncio.sleep(self._random.uniform(pause / 2, pause))
                pause = min(2 * pause, COORDINATOR_RETRY_SECONDS_MAX)
                continue
            try:
                await self._converse(connection)
                self._trouble = "the connection ended"
                pause = COORDINATOR_RETRY_SECONDS_MIN
            except (RemoteProtocolError, TimeoutError) as error:
                self._trouble = str(error) or "no answer to the greeting"
                logger.warning("coordinator_lost address=%s error=%s", self._address, error)
            finally:
                connection.close()
                self._disconnected()
            await asyncio.sleep(self._random.uniform(pause / 2, pause))

    async def _converse(self, connection: Connection) -> None:
        """Send calls and take answers until the connection ends."""
        lines = Lines()
        connection.write(line(coordinator=PROTOCOL_VERSION, session=self._session))
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            contents: list[dict[str, Any]] = []
            heard = b""
            while not contents:
                data = await connection.read()
                heard = (heard + data)[:FIRST_BYTES_MAX]
                found = recognized(heard)
                if found not in (None, COORDINATOR):
                    raise RemoteProtocolError(
                        f"{found} answers there; expected {COORDINATOR}: give the address of"
                        f" {COORDINATOR}"
                    )
                if not data:
                    raise RemoteProtocolError(
                        "the peer ended the connection without a greeting; a ZooKeeper does this,"
                        " too: check host and port, or give zookeeper://host:port/root"
                    )
                contents = list(lines.receive(data))
        session_seconds = self._welcomed(contents.pop(0))
        self._heard = self._clock.now()
        self._connection = connection
        self._connected.set()
        beating = asyncio.create_task(self._beat(connection, session_seconds / 3))
        try:
            while True:
                for content in contents:
                    self._answered(content)
                data = await connection.read()
                if not data:
                    return
                self._heard = self._clock.now()
                contents = list(lines.receive(data))
        finally:
            beating.cancel()

    def _welcomed(self, content: dict[str, Any]) -> float:
        """Take the session from the greeting; return its timeout in seconds."""
        match content:
            case {"session": str() as session, "session_seconds": float() | int() as seconds}:
                if self._session not in (None, session):
                    logger.info("coordinator_session_lost session=%s", self._session)
                self._session = session
                return float(seconds)
            case _:
                raise RemoteProtocolError(f"not a coordinator's greeting: {str(content)[:80]}")

    def _answered(self, content: dict[str, Any]) -> None:
        match content:
            case {"id": int() as request_id, "error": str() as name, "text": str() as text}:
                answer = self._pending.pop(request_id, None)
                if answer is not None and not answer.done():
                    answer.set_exception(CALL_ERRORS.get(name, RemoteProtocolError)(text))
            case {"id": int() as request_id, "result": result}:
                answer = self._pending.pop(request_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(result)
            case _:
                raise RemoteProtocolError(
                    f"not an answer to a coordinator call: {str(content)[:80]}"
                )

    async def _beat(self, connection: Connection, interval_seconds: float) -> None:
        """Send a ping per interval; end a connection on which nothing arrives for two intervals."""
        while True:
            await asyncio.sleep(interval_seconds)
            if self._clock.now() - self._heard > 2 * interval_seconds:
                logger.warning("coordinator_silent address=%s", self._address)
                connection.close()
                return
            connection.write(line(id=0, call="ping"))

    def _disconnected(self) -> None:
        self._connection = None
        self._connected.clear()
        pending, self._pending = self._pending, {}
        for answer in pending.values():
            if not answer.done():
                answer.set_exception(_AnswerLostError(f"connection to {self._address} lost"))
