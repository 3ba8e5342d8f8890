"""The coordinator as a real ZooKeeper keeps it. The only file that knows kazoo.

Owns one kazoo client, whose threads pass everything they receive to the event loop and touch
nothing else; and the calls and waits that depend on its connection. Knows nothing of the meaning of
the nodes.

Kazoo is used without its retries and recipes. A call is handed over only while there is a
connection, and at most once: kazoo would keep a call that it cannot send and send it later, so that
one creation tried five times would become five nodes. Watches are kazoo's one-shot ones, all with
the same function, so that a path is watched at most once however often a wait is given up; a wait
looks at the node again after every watch and after every change of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from waltz.cluster.tree import check_path
from waltz.errors import (
    CoordinationError,
    CoordinatorLostError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
    WaltzError,
)
from waltz.host import ANY_VERSION, Node
from waltz.limits import (
    COORDINATOR_CALL_SECONDS_MAX,
    COORDINATOR_RETRY_SECONDS_MAX,
    COORDINATOR_RETRY_SECONDS_MIN,
    COORDINATOR_SESSION_SECONDS,
)
from waltz.system.port_probe import what_answers
from waltz.system.tls import Tls
from waltz.types import OPEN_ACCESS, ZooKeeperAccess, ZooKeeperAcl

ZOOKEEPER_REQUEST_BYTES_MAX: Final = 1024 * 1024 - 1
"""ZooKeeper ends a connection that sends a larger request (its default, `jute.maxbuffer`)."""

ZOOKEEPER_REQUEST_BYTES_OVERHEAD: Final = 1024
"""A bound on the bytes of a request besides data and path."""

ZOOKEEPER_CLOSE_SECONDS_MAX: Final = 1.0
"""Closing waits at most this long for the end of the session, which else ends by its timeout."""


logger = logging.getLogger(__name__)

kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
kazoo_logger.setLevel(logging.ERROR)  # this module logs changes of connections, once each

REFUSALS: Final[dict[type[Exception], type[WaltzError]]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: VersionConflictError,
    kazoo_errors.NotEmptyError: CoordinationError,
    kazoo_errors.NoChildrenForEphemeralsError: CoordinationError,
    kazoo_errors.BadArgumentsError: CoordinationError,
    kazoo_errors.MarshallingError: CoordinationError,
    kazoo_errors.UnimplementedError: CoordinationError,
    kazoo_errors.InvalidACLError: CoordinationError,
    kazoo_errors.NoAuthError: CoordinationError,
    kazoo_errors.QuotaExceededError: CoordinationError,
}
"""Answers which say that nothing was changed. After any other error the outcome is unknown."""


class _AnswerLostError(CoordinatorLostError):
    """The connection ended after the call was handed over."""


class ZooKeeperCoordinator:
    """Implements `host.Coordinator` on a ZooKeeper.

    `connect_string` is `host:port,host:port`, with `/path` behind it for a chroot, which exists.
    Connects with the first call, and again by itself; a session that has expired is replaced by a
    new one, unasked, without the ephemeral nodes of the old one; so is a session that ZooKeeper
    does not take back while it takes new ones. A call waits for a lost connection
    up to `call_seconds_max` and then raises CoordinatorLostError. `read`, `children` and `changed`
    survive a connection lost under them; the other calls raise CoordinatorLostError at once,
    because nobody knows whether they took effect.
    """

    def __init__(
        self,
        connect_string: str,
        *,
        session_seconds: float = COORDINATOR_SESSION_SECONDS,
        call_seconds_max: float = COORDINATOR_CALL_SECONDS_MAX,
        access: ZooKeeperAccess = OPEN_ACCESS,
    ) -> None:
        """Raises ConfigurationError: a file that `access` names cannot be used."""
        self._tls = None if access.tls is None else Tls(access.tls)
        self._connect_string = connect_string
        self._session_seconds = session_seconds
        self._new_client = partial(
            _new_client, connect_string, session_seconds, access=access, tls=self._tls
        )
        self._call_seconds_max = call_seconds_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._connected = asyncio.Event()
        self._session_id = 0
        self._pending: set[asyncio.Future[Any]] = set()
        self._waiting: dict[str, set[asyncio.Future[bool]]] = {}
        """Waits by path; each is resolved with whether the node, not the connection, has
        changed."""
        self._refusal: asyncio.Task[None] | None = None
        """Finds out whether the session is refused, while there is no connection."""
        self._closed = False

    # `host.Coordinator`

    async def read(self, path: str) -> Node:
        check_path(path)
        data, stat = await self._call_again(lambda client: client.get_async(path))
        is_own = stat.ephemeralOwner not in (0, None) and stat.ephemeralOwner == self._session_id
        return Node(data, stat.version, stat.cversion, is_own, self._session_id)

    async def children(self, path: str) -> Sequence[str]:
        check_path(path)
        return sorted(await self._call_again(lambda client: client.get_children_async(path)))

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        check_path(path)
        _check_size(path, data)
        return str(
            await self._call(
                lambda client: client.create_async(
                    path, data, ephemeral=ephemeral, sequence=sequential
                )
            )
        )

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        check_path(path)
        _check_size(path, data)
        stat = await self._call(lambda client: client.set_async(path, data, version))
        return int(stat.version)

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        check_path(path)
        await self._call(lambda client: client.delete_async(path, version))

    async def changed(self, path: str, seen: Node | None) -> None:
        check_path(path)
        while True:
            woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(path, set()).add(woken)
            try:
                if await self._differs(path, seen):
                    return
                # A wake-up in the meantime may be for a change that was seen already.
                is_news = not woken.done()
                if await woken and is_news:
                    return
            except _AnswerLostError:
                continue
            finally:
                waiting = self._waiting[path]
                waiting.discard(woken)
                if not waiting:
                    del self._waiting[path]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        client, self._client = self._client, None
        self._forget_refusal()
        self._disconnected(CoordinatorLostError("the coordinator was closed on this side"))
        self._connected.set()  # wakes the calls that wait, to find it closed
        if client is not None:
            await asyncio.wait([_end(client)], timeout=ZOOKEEPER_CLOSE_SECONDS_MAX)

    # Calls

    async def _call_again(self, ask: Callable[[Any], Any]) -> Any:
        while True:
            try:
                return await self._call(ask)
            except _AnswerLostError:
                continue

    async def _call(self, ask: Callable[[Any], Any]) -> Any:
        """Make a call and return its result. Raises CoordinatorLostError; if the call was handed
        over, its subclass _AnswerLostError."""
        client = await self._connected_client()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def deliver(result: Any) -> None:
            """On a thread of kazoo's."""
            self._post(_settle, answer, result.exception, result.value)

        result = ask(client)
        self._pending.add(answer)
        try:
            result.rawlink(deliver)
            async with asyncio.timeout(self._session_seconds):
                return await answer
        except TimeoutError as error:
            raise CoordinatorLostError(
                f"no answer from ZooKeeper at {self._connect_string} within"
                f" {self._session_seconds:g} s"
            ) from error
        except WaltzError:
            raise
        except Exception as error:  # kazoo passes on any error of decoding an answer
            raise translated_error(error, self._connect_string) from error
        finally:
            self._pending.discard(answer)

    async def _connected_client(self) -> Any:
        if self._client is None and not self._closed:
            self._loop = asyncio.get_running_loop()
            self._begin()
        elif self._client is not None and not self._client.connected:
            self._connected.clear()  # kazoo's thread knows already and will tell
        try:
            async with asyncio.timeout(self._call_seconds_max):
                await self._connected.wait()
        except TimeoutError as error:
            found = await what_answers(self._connect_string) if self._tls is None else None
            raise CoordinatorLostError(
                f"no ZooKeeper answers at {self._connect_string}{f': {found}' if found else ''}"
            ) from error
        if self._closed:
            raise CoordinatorLostError("the coordinator was closed on this side")
        return self._client

    # Changes

    async def _differs(self, path: str, seen: Node | None) -> bool:
        """Compare the node with `seen` and leave watches that tell of later changes."""
        look = self._call(lambda client: client.exists_async(path, watch=self._watched))
        if seen is None:
            return await look is not None
        look_below = self._call(
            lambda client: client.get_children_async(path, watch=self._watched, include_data=True)
        )
        found: Sequence[Any] = await asyncio.gather(look, look_below, return_exceptions=True)
        if seen.session not in (None, self._session_id):
            return True
        stat, below = found
        if isinstance(below, NoNodeError):
            return True
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return stat is None or not (_is_as(stat, seen) and _is_as(below[1], seen))

    def _watched(self, event: WatchedEvent) -> None:
        """On a thread of kazoo's; an event without a path tells of the connection."""
        self._post(self._wake, event.path)

    def _wake(self, path: str | None) -> None:
        for waited in [path] if path else list(self._waiting):
            for woken in self._waiting.get(waited, ()):
                if not woken.done():
                    woken.set_result(path is not None)

    # The connection

    def _begin(self) -> None:
        client = self._new_client()

        def listen(state: str) -> None:
            """On a thread of kazoo's, which must not wait here."""
            self._post(self._heard, client, state, client.client_state, client.client_id)

        client.add_listener(listen)
        self._client = client
        client.start_async()

    def _heard(
        self, client: Any, state: str, keeper_state: str, client_id: tuple[int, bytes] | None
    ) -> None:
        if client is not self._client:
            return
        if state == KazooState.CONNECTED:
            session_id = 0 if client_id is None else client_id[0]
            if session_id != self._session_id:
                logger.info(
                    "coordinator_session_begun servers=%s session=%#x",
                    self._connect_string, session_id,
                )  # fmt: skip
            self._session_id = session_id
            self._connected.set()
            self._forget_refusal()
        else:
            self._connected.clear()
            if self._refusal is None:
                self._refusal = asyncio.create_task(self._find_refusal(client))
            if state == KazooState.LOST:
                logger.warning("coordinator_session_lost servers=%s", self._connect_string)
            else:
                logger.warning("coordinator_suspended servers=%s", self._connect_string)
            self._disconnected(
                _AnswerLostError(f"connection to ZooKeeper at {self._connect_string} lost")
            )
        if keeper_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
            # Kazoo has given up over bytes that it does not understand: begin anew.
            self._forget_refusal()
            _end(client)
            self._begin()

    async def _find_refusal(self, client: KazooClient) -> None:
        """Begin anew if ZooKeeper takes a new session but not that of `client`.

        A server closes the connection of a process that has seen a later transaction than the
        server has. A ZooKeeper that was rebuilt would refuse the session for ever in this way.
        """
        await asyncio.sleep(self._session_seconds)
        fresh, is_taken = self._new_client(), asyncio.Event()

        def listen(state: str) -> None:
            """On a thread of kazoo's."""
            if state == KazooState.CONNECTED:
                self._post(is_taken.set)

        fresh.add_listener(listen)
        fresh.start_async()
        try:
            await is_taken.wait()
            # By then `client` has tried again.
            await asyncio.sleep(2 * COORDINATOR_RETRY_SECONDS_MAX)
        finally:
            _end(fresh)
        logger.warning("coordinator_session_refused servers=%s", self._connect_string)
        self._refusal = None
        _end(client)
        self._begin()

    def _forget_refusal(self) -> None:
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            refusal.cancel()

    def _disconnected(self, error: CoordinatorLostError) -> None:
        for answer in self._pending:
            if not answer.done():
                answer.set_exception(error)
        self._wake(None)

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        """Call `function` on the loop, from any thread; do nothing if the loop has ended."""
        assert self._loop is not None
        _call_on(self._loop, function, *arguments)


class _SecuredHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Gives kazoo sockets that use TLS like all of ours: its own would trust every CA of the system
    and never read a changed file again."""

    def __init__(self, tls: Tls) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> ssl.SSLSocket:
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._tls.connecting_context()
            return context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, readable: Sequence[Any], *others: Any) -> Any:
        """Select as the system does, and also return sockets with decrypted data: one record may
        hold two answers."""
        pending = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        return (pending, [], []) if pending else super().select(readable, *others)


def _new_client(
    connect_string: str, session_seconds: float, *, access: ZooKeeperAccess, tls: Tls | None
) -> KazooClient:
    user, password = access.user, access.password
    return KazooClient(
        connect_string,
        timeout=session_seconds,
        connection_retry=KazooRetry(
            max_tries=-1,
            delay=COORDINATOR_RETRY_SECONDS_MIN,
            max_delay=COORDINATOR_RETRY_SECONDS_MAX,
        ),
        logger=kazoo_logger,
        handler=None if tls is None else _SecuredHandler(tls),
        auth_data=[("digest", f"{user}:{password}")] if user is not None else None,
        default_acl=CREATOR_ALL_ACL if access.acl is ZooKeeperAcl.CREATOR else None,
    )


def _end(client: Any) -> asyncio.Future[None]:
    """End the client's session and threads; the returned future is resolved when that is done."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        """On a thread of its own: waits until the server has answered."""
        try:
            client.stop()
            client.close()
        except Exception as error:
            # Then the session ends by its timeout, like that of a killed process.
            logger.info("coordinator_left_unclosed error=%r", error)
        _call_on(loop, _settle, ended, None, None)

    # Not a worker of the loop: a process that ends would wait for a server that hangs.
    threading.Thread(target=end, daemon=True).start()
    return ended


def _call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object
) -> None:
    """Call `function` on the loop, from any thread; do nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def translated_error(error: Exception, connect_string: str) -> WaltzError:
    """Return the error that stands for one of kazoo's, with the address of the ZooKeeper."""
    name = type(error).__name__
    if isinstance(error, kazoo_errors.ConnectionLoss | kazoo_errors.SessionExpiredError):
        return _AnswerLostError(f"connection to ZooKeeper at {connect_string} lost")
    if (kind := REFUSALS.get(type(error))) is not None:
        return kind(f"ZooKeeper refuses: {name} {error}".rstrip())
    return CoordinatorLostError(f"trouble in ZooKeeper at {connect_string}: {name}")


def _settle(future: asyncio.Future[Any], error: Exception | None, value: object) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _is_as(stat: ZnodeStat, seen: Node) -> bool:
    return bool(stat.version == seen.version and stat.cversion == seen.child_version)


def _check_size(path: str, data: bytes | None) -> None:
    """Raises CoordinationError: the request is too large. It would end the connection, and be
    repeated for ever."""
    limit = ZOOKEEPER_REQUEST_BYTES_MAX - ZOOKEEPER_REQUEST_BYTES_OVERHEAD - len(path.encode())
    if data is not None and len(data) > limit:
        raise CoordinationError(
            f"the data for node {path} has {len(data)} bytes; the limit is {limit}"
        )
