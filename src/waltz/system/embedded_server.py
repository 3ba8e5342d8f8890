"""The embedded coordinator: ZooKeeper's rules without ZooKeeper, in one process and one file.

Owns the tree, the sessions and the file; knows nothing of the meaning of the nodes.

A session outlives its connection by `COORDINATOR_GRACE_SECONDS`, so that a live process may return
to it while the ephemeral nodes of a killed one go within about a second. It also ends after
`COORDINATOR_SESSION_SECONDS` of silence, at once when the client closes, and with the server:
persistent nodes are kept, ephemeral ones are not. An answer is sent only once everything that it
tells is on disk. Any process that can connect may change everything: listen on loopback only.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from zlib import crc32

from waltz.cluster.tree import Tree, parent_of
from waltz.errors import (
    ConfigurationError,
    CoordinationError,
    LocalProtocolError,
    RemoteProtocolError,
    StorageError,
)
from waltz.host import Connection, Disk, Listener, Node
from waltz.limits import (
    COORDINATOR_GRACE_SECONDS,
    COORDINATOR_LINE_BYTES_MAX,
    COORDINATOR_SESSION_SECONDS,
    HANDSHAKE_SECONDS_MAX,
    HELLO_BYTES_MAX,
)
from waltz.peer_log import PeerLog
from waltz.system.clock import RealClock
from waltz.system.embedded_lines import (
    PROTOCOL_VERSION,
    Lines,
    data_from_json,
    data_to_json,
    line,
    parse_object,
)
from waltz.system.random import RealRandom
from waltz.system.real_disk import RealDisk
from waltz.system.tcp_network import NOT_CONFIGURED, RealNetwork
from waltz.system.workers import RealWorkers
from waltz.types import Address, TlsSettings

COORDINATOR_REQUESTS_MAX: Final = 10_000
"""Calls of one session that the embedded coordinator has not answered yet."""

COORDINATOR_SESSIONS_MAX: Final = 10_000
"""Processes that the embedded coordinator serves at a time."""


logger = logging.getLogger(__name__)

NOT_A_MEMBER: Final = "the coordinator answers here, and this is no greeting of its clients"

FILE_FORMAT: Final = "waltz coordinator"
FILE_VERSION: Final = 1


def load_tree(disk: Disk, path: str) -> Tree:
    """Return the tree stored at `path`, an empty one if there is no such file.

    Raises ConfigurationError: the file is damaged; it is left as it is.
    """
    if not disk.exists(path):
        return Tree()
    file = disk.open(path)
    try:
        content = file.read_at(0, file.size())
    finally:
        file.close()
    try:
        document = parse_object(content)
        tree = document.get("tree")
        if document.get("format") != FILE_FORMAT or document.get("version") != FILE_VERSION:
            raise RemoteProtocolError(
                f"found format {document.get('format')!r} version {document.get('version')!r};"
                f" expected {FILE_FORMAT!r} version {FILE_VERSION}"
            )
        if document.get("crc32") != _checksum(tree):
            raise RemoteProtocolError("its checksum is wrong")
        return Tree.from_snapshot(tree)
    except (RemoteProtocolError, LocalProtocolError) as error:
        raise ConfigurationError(
            f"the coordinator's file {path} is damaged ({error}); restore it from a copy, or move"
            " it away to begin with an empty tree"
        ) from error


def save_tree(disk: Disk, path: str, snapshot: dict[str, Any]) -> None:
    """Replace the file at `path` in one step; return once that is durable."""
    content = line(
        format=FILE_FORMAT, version=FILE_VERSION, crc32=_checksum(snapshot), tree=snapshot
    )
    new_path = f"{path}.new"
    if disk.exists(new_path):
        disk.remove(new_path)
    file = disk.open(new_path, create=True)
    try:
        file.write_at(0, content)
        file.sync()
    finally:
        file.close()
    disk.rename(new_path, path)
    disk.sync_directory(path.rpartition("/")[0] or ("/" if path.startswith("/") else "."))


def _checksum(tree: object) -> int:
    return crc32(json.dumps(tree, separators=(",", ":"), sort_keys=True).encode())


@dataclass(slots=True, eq=False)
class _Session:
    """The session of one process. `connection` is None while the process is away."""

    session_id: str
    connection: Connection | None = None
    heard: float = 0.0
    waits: dict[int, tuple[str, Node | None]] = field(default_factory=dict)
    unanswered_count: int = 0
    timer: asyncio.TimerHandle | None = None


class EmbeddedCoordinatorServer:
    """Serves the tree stored in the file `path`, which one server at a time may use."""

    def __init__(
        self,
        path: str,
        *,
        disk: Disk | None = None,
        tls: TlsSettings = NOT_CONFIGURED,
        session_seconds: float = COORDINATOR_SESSION_SECONDS,
        grace_seconds: float = COORDINATOR_GRACE_SECONDS,
    ) -> None:
        self._path = path
        self._session_seconds = session_seconds
        self._grace_seconds = grace_seconds
        self._disk = disk or RealDisk()
        self._clock = RealClock()
        self._network = RealNetwork(tls)
        self._random = RealRandom()
        self._workers = RealWorkers(1)
        self._tree = Tree()
        self._sessions: dict[str, _Session] = {}
        self._listener: Listener | None = None
        self._unlock: Callable[[], None] | None = None
        self._revision = 0
        self._durable_revision = 0
        self._changed = asyncio.Event()
        self._answers: list[tuple[int, _Session, Connection, bytes]] = []
        self._saver: asyncio.Task[None] | None = None
        self._stopping = False
        self._peer_log = PeerLog(logger, asyncio.get_running_loop)

    @property
    def address(self) -> Address:
        """The address that it listens on, with the real port where port 0 was asked for."""
        assert self._listener is not None, "started"
        return self._listener.address

    async def start(self, address: Address) -> None:
        """Load the tree and listen.

        Raises ConfigurationError: port in use, damaged file. DirectoryInUseError: another server
        has the file.
        """
        await self._workers.run_blocking(self._load)
        try:
            self._listener = await self._network.listen(address, self._serve)
        except ConfigurationError:
            self._release()
            raise
        self._saver = asyncio.create_task(self._save_changes())

    def _load(self) -> None:
        lock_path = f"{self._path}.lock"
        try:
            # If another process makes it first, one of the two finds it locked.
            with suppress(FileExistsError):
                self._disk.open(lock_path, create=True).close()
            self._unlock = self._disk.lock(lock_path)
            self._tree = load_tree(self._disk, self._path)
        except OSError as error:
            self._release()
            raise ConfigurationError(f"cannot use {self._path}: {error}") from error
        except ConfigurationError:
            self._release()
            raise

    def _release(self) -> None:
        self._workers.close()
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    async def run(self) -> None:
        """Return once stopped. Raises StorageError: the file cannot be written."""
        assert self._saver is not None, "started"
        await asyncio.wait([self._saver])
        await self._saver

    async def stop(self) -> None:
        """End all connections and sessions, save, release the port and the file. Idempotent."""
        if self._saver is None:
            return
        await self._disconnect_all()
        self._stopping = True
        self._changed.set()
        await asyncio.wait([self._saver])
        if not self._saver.cancelled():
            self._saver.exception()  # raised by `run`, and logged
        self._release()

    async def _disconnect_all(self) -> None:
        assert self._listener is not None
        await self._listener.close()
        for session in self._sessions.values():
            if session.timer is not None:
                session.timer.cancel()
            if session.connection is not None:
                session.connection.close()
        self._sessions.clear()

    # One connection

    async def _serve(self, connection: Connection) -> None:
        session: _Session | None = None
        lines = Lines(HELLO_BYTES_MAX)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX) as patience:
                while data := await connection.read():
                    if session is None and not lines.receives_object(data):
                        # A client of another protocol learns from this answer whom it has met.
                        connection.write(line(error="RemoteProtocolError", text=NOT_A_MEMBER))
                        raise RemoteProtocolError(
                            f"the client's first line is {data[:80]!r}; expected a greeting"
                        )
                    for content in lines.receive(data):
                        if session is None:
                            session = self._welcome(content, connection)
                            lines.bytes_max = COORDINATOR_LINE_BYTES_MAX
                            patience.reschedule(None)
                        elif session.connection is connection:
                            self._handle(session, content)
                    await connection.drain()
        except TimeoutError:
            self._peer_log.warning(
                "coordinator_bad_request peer=%s error=no greeting", connection.peer
            )
        except RemoteProtocolError as error:
            self._peer_log.warning(
                "coordinator_bad_request peer=%s error=%s", connection.peer, error
            )
        finally:
            if session is not None and session.connection is connection:
                session.connection = None
                session.waits.clear()
                if session.session_id in self._sessions:
                    self._arm(session, self._grace_seconds)

    def _welcome(self, content: dict[str, Any], connection: Connection) -> _Session:
        if content.get("coordinator") != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"coordinator protocol {content.get('coordinator')!r}; expected {PROTOCOL_VERSION}"
            )
        session = self._sessions.get(str(content.get("session")))
        if session is None:
            if len(self._sessions) >= COORDINATOR_SESSIONS_MAX:
                raise RemoteProtocolError(f"more than {COORDINATOR_SESSIONS_MAX} sessions")
            session = _Session(str(self._random.uuid()))
            self._sessions[session.session_id] = session
        if session.connection is not None:
            # The session's old connection is dead on the other side, whatever this side sees.
            session.connection.close()
            session.waits.clear()
        session.connection = connection
        session.heard = self._clock.now()
        self._arm(session, self._session_seconds)
        connection.write(line(session=session.session_id, session_seconds=self._session_seconds))
        return session

    def _arm(self, session: _Session, seconds: float) -> None:
        if session.timer is not None:
            session.timer.cancel()
        loop = asyncio.get_running_loop()
        session.timer = loop.call_later(seconds, self._maybe_expire, session)

    def _maybe_expire(self, session: _Session) -> None:
        silent_seconds = self._clock.now() - session.heard
        if session.connection is not None and silent_seconds < self._session_seconds:
            self._arm(session, self._session_seconds - silent_seconds)
        else:
            self._end_session(session)

    def _end_session(self, session: _Session) -> None:
        self._sessions.pop(session.session_id, None)
        if session.timer is not None:
            session.timer.cancel()
        if session.connection is not None:
            session.connection.close()
        # Not a change to save: the tree is saved without its ephemeral nodes anyway.
        self._answer_waits(self._tree.end_session(session.session_id))

    # One call

    def _handle(self, session: _Session, content: dict[str, Any]) -> None:
        session.heard = self._clock.now()
        match content:
            case {"forget": int() as request_id}:
                session.waits.pop(request_id, None)
                return
            case {"id": int() as request_id, "call": "end"}:
                gone = self._tree.end_session(session.session_id)
                self._answer(session, id=request_id, result=None)
                self._answer_waits(gone)
                return
            case {"id": int() as request_id, "call": "changed", "path": str() as path}:
                session.waits[request_id] = path, _seen_from_json(content.get("seen"))
                self._answer_wait(session, request_id)
            case {"id": int() as request_id}:
                try:
                    result = self._call(session, content)
                except (CoordinationError, LocalProtocolError) as error:
                    name = type(error).__name__
                    self._answer(session, id=request_id, error=name, text=str(error))
                else:
                    self._answer(session, id=request_id, result=result)
            case _:
                raise RemoteProtocolError(f"not a coordinator call: {str(content)[:80]}")
        if len(session.waits) + session.unanswered_count > COORDINATOR_REQUESTS_MAX:
            raise RemoteProtocolError(f"more than {COORDINATOR_REQUESTS_MAX} calls at a time")

    def _call(self, session: _Session, content: dict[str, Any]) -> Any:
        match content:
            case {"call": "ping"}:
                return None
            case {"call": "read", "path": str() as path}:
                node = self._tree.read(path, session.session_id)
                return [data_to_json(node.data), node.version, node.child_version, node.is_own]
            case {"call": "children", "path": str() as path}:
                return list(self._tree.children(path))
            case {
                "call": "create",
                "path": str() as path,
                "data": data,
                "ephemeral": bool() as ephemeral,
                "sequential": bool() as sequential,
            }:
                owner = session.session_id if ephemeral else None
                created = self._tree.create(
                    path, data_from_json(data), owner=owner, sequential=sequential
                )
                self._note_change(created)
                return created
            case {"call": "write", "path": str() as path, "data": str() as data, "version": int(v)}:
                version = self._tree.write(path, data_from_json(data) or b"", version=v)
                self._note_change(path)
                return version
            case {"call": "delete", "path": str() as path, "version": int() as version}:
                self._tree.delete(path, version=version)
                self._note_change(path)
                return None
            case _:
                raise RemoteProtocolError(f"not a coordinator call: {str(content)[:80]}")

    def _note_change(self, path: str) -> None:
        self._revision += 1
        self._changed.set()
        self._answer_waits([path])

    def _answer_waits(self, paths: Sequence[str]) -> None:
        """Answer the waits for a change of these nodes or of their parents only: with many
        partitions there are many waits, and a change concerns few of them."""
        concerned = {*paths, *map(parent_of, paths)}
        for session in self._sessions.values():
            for request_id, (path, _) in list(session.waits.items()):
                if path in concerned:
                    self._answer_wait(session, request_id)

    def _answer_wait(self, session: _Session, request_id: int) -> None:
        path, seen = session.waits[request_id]
        try:
            if not self._tree.differs(path, seen):
                return
        except LocalProtocolError as error:
            self._answer(session, id=request_id, error="LocalProtocolError", text=str(error))
        else:
            self._answer(session, id=request_id, result=None)
        del session.waits[request_id]

    def _answer(self, session: _Session, **content: Any) -> None:
        if session.connection is None:
            return
        if self._durable_revision == self._revision:
            session.connection.write(line(**content))
        else:
            session.unanswered_count += 1
            self._answers.append((self._revision, session, session.connection, line(**content)))

    async def _save_changes(self) -> None:
        """Save whenever the tree has changed, then send the answers that waited for it."""
        while not self._stopping:
            await self._changed.wait()
            self._changed.clear()
            revision = self._revision
            save = partial(save_tree, self._disk, self._path, self._tree.snapshot())
            try:
                await self._workers.run_blocking(save)
            except OSError as error:
                # Unanswered changes may or may not be on disk: no more answers are sent.
                logger.error("coordinator_file_failed path=%s error=%s", self._path, error)
                await self._disconnect_all()
                raise StorageError(f"cannot write {self._path}: {error}") from error
            self._durable_revision = revision
            answers, self._answers = self._answers, []
            for index, (needed, session, connection, answer) in enumerate(answers):
                if needed > revision:
                    self._answers = answers[index:] + self._answers
                    break
                session.unanswered_count -= 1
                connection.write(answer)


def _seen_from_json(seen: object) -> Node | None:
    match seen:
        case None:
            return None
        case [int() as version, int() as child_version]:
            return Node(None, version, child_version)
        case _:
            raise RemoteProtocolError(f"not what was seen of a node: {seen!r}")
