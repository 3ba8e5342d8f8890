"""The part of `golden_server` in ZooKeeper: its node, the assignment, the partitions' metadata.

Values are packed and read by place. The server with the smallest ID is the coordinator, which
assigns the partitions by the original's dynamic policy.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.retry import KazooRetry

UNRESOLVED: Final = -(2**63)
"""The closing high-water mark of a replica that takes part."""

SESSION_SECONDS: Final = 10.0
"""Seconds until a session in ZooKeeper ends, if the cluster's address says no other number."""

RETRY_SECONDS: Final = 0.3
LOOK_SECONDS: Final = 0.02
"""Nodes that changed while they were read are read again after this time."""
CONFLICT_SECONDS_MIN, CONFLICT_SECONDS_MAX = 0.1, 1.0

T = TypeVar("T")


class GenerationError(Exception):
    """A newer owner of the partition has been there."""


class FencedError(Exception):
    """The partition's metadata names another session than that which writes."""


class IncompleteError(Exception):
    """The policy finds no server for some partition; the original writes nothing then."""


class Reader:
    """Takes values off the front of a node's data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def take(self, form: str) -> int:
        """Return one number in this form of `struct`."""
        (value,) = struct.unpack_from(f">{form}", self._data, self._place)
        self._place += struct.calcsize(f">{form}")
        return int(value)

    def expect(self, form: str, value: int) -> None:
        assert self.take(form) == value, "another format"

    def bytes(self, count: int) -> bytes:
        self._place += count
        return self._data[self._place - count : self._place]

    def text(self) -> str:
        # Java's modified UTF-8 is ASCII where host names are.
        return self.bytes(self.take("H")).decode("ascii")


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


@dataclass(frozen=True)
class Descriptor:
    server: int
    host: str
    port: int
    preferred: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        head = struct.pack(">Bi", 1, self.server) + text(self.host)
        count = len(self.preferred)
        return head + struct.pack(f">ii{count}i", self.port, count, *self.preferred)


def read_descriptor(data: bytes) -> Descriptor:
    reader = Reader(data)
    reader.expect("B", 1)
    server, host, port = reader.take("i"), reader.text(), reader.take("i")
    preferred = tuple(reader.take("i") for _ in range(reader.take("i")))
    return Descriptor(server, host, port, preferred)


@dataclass(frozen=True)
class Assignment:
    """Generations by partition by server; `cversion`: of the servers' parent when it was made."""

    cversion: int
    partitions: int
    servers: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        found = struct.pack(">Biii", 3, self.cversion, self.partitions, len(self.servers))
        for server, owned in self.servers.items():
            found += struct.pack(">ii", server, len(owned))
            found += b"".join(struct.pack(">ii", *each) for each in owned.items())
        return found


def read_assignment(data: bytes) -> Assignment:
    reader = Reader(data)
    reader.expect("B", 3)
    cversion, partitions = reader.take("i"), reader.take("i")
    servers = {}
    for _ in range(reader.take("i")):
        server, count = reader.take("i"), reader.take("i")
        servers[server] = {reader.take("i"): reader.take("i") for _ in range(count)}
    return Assignment(cversion, partitions, servers)


def assign(
    before: Assignment, cversion: int, partitions: int, servers: Mapping[int, Sequence[int]]
) -> Assignment:
    """Return the assignment of the dynamic policy; `servers`: partitions preferred by each.

    As in the original, a server whose preferred partitions are all that it would be given uses up
    a surplus partition that it is not given. Raises IncompleteError: so a partition has no server.
    """
    owners = {
        partition: (generation, server)
        for server, owned in before.servers.items()
        for partition, generation in owned.items()
    }
    new = dict.fromkeys(range(before.partitions, partitions), (0, None))
    pool: dict[int, tuple[int, int | None]] = {**owners, **new}
    least, surplus = divmod(partitions, len(servers))
    found: dict[int, dict[int, int]] = {server: {} for server in sorted(servers)}

    def has_room(server: int) -> bool:
        nonlocal surplus
        if len(found[server]) == least and surplus > 0:
            surplus -= 1
            return True
        return len(found[server]) < least

    for server, owned in found.items():
        for partition in servers[server]:
            if partition in pool:
                generation, owner = pool.pop(partition)
                owned[partition] = generation + (owner != server)
                surplus -= len(owned) >= least
    for server, owned in found.items():
        for partition in before.servers.get(server, {}):
            if partition in pool:
                if not has_room(server):
                    break
                owned[partition], _ = pool.pop(partition)
    for server, owned in found.items():
        while pool and has_room(server):
            partition = next(iter(pool))
            generation, _ = pool.pop(partition)
            owned[partition] = generation + 1
    if sum(map(len, found.values())) != partitions:
        raise IncompleteError(f"incomplete partition assignment: {found}")
    return Assignment(cversion, partitions, found)


@dataclass(frozen=True)
class Metadata:
    """A partition's; `states`: session and closing high-water mark by storage node."""

    generation: int = -1
    session: int = -1
    states: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_bytes(self, partition: int) -> bytes:
        found = struct.pack(">Biqi", 1, self.generation, self.session, len(self.states))
        for place, (session, mark) in self.states.items():
            found += struct.pack(">BBi", 1, 1, partition) + text(place)
            found += struct.pack(">qq", session, mark)
        return found


def read_metadata(data: bytes) -> Metadata:
    reader = Reader(data)
    reader.expect("B", 1)
    generation, session = reader.take("i"), reader.take("q")
    states = {}
    for _ in range(reader.take("i")):
        reader.expect("B", 1)
        reader.expect("B", 1)
        reader.take("i")
        place = reader.text()
        states[place] = (reader.take("q"), reader.take("q"))
    return Metadata(generation, session, states)


def read_replicas(data: bytes) -> dict[int, list[str]]:
    """Return the storage nodes of each partition."""
    reader = Reader(data)
    reader.expect("B", 1)
    found: dict[int, list[str]] = {}
    for _ in range(reader.take("i")):
        place = reader.text()
        for _ in range(reader.take("i")):
            found.setdefault(reader.take("i"), []).append(place)
    return found


class Tree:
    """A cluster's nodes in ZooKeeper; every operation is repeated until ZooKeeper is there."""

    def __init__(self, address: str) -> None:
        """`address`: `zookeeper://HOST:PORT,.../ROOT?sessionTimeout=MILLISECONDS`."""
        place, _, query = address.partition("://")[2].partition("?")
        hosts, _, root = place.partition("/")
        milliseconds = query.partition("=")[2]
        seconds = int(milliseconds) / 1000 if milliseconds else SESSION_SECONDS
        self.root = f"/{root}"
        self.is_closed = threading.Event()
        self.client = KazooClient(
            hosts,
            timeout=seconds,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0),
        )

    def start(self) -> None:
        """Read the cluster's parameters. The original follows a change of the replicas; here they
        are read this once."""
        self.client.start_async()
        reader = Reader(self.again(lambda: self.client.get(self.root))[0])
        reader.expect("I", 0xB4E87347)
        reader.expect("B", 1)
        reader.text()
        self.partitions = reader.take("i")
        reader = Reader(self.again(lambda: self.client.get(f"{self.root}/store"))[0])
        reader.expect("B", 1)
        self.opening = reader.bytes(16) + struct.pack(">i", self.partitions)
        """Cluster key and number of partitions, as a storage node is asked for them."""
        assert reader.take("i") == self.partitions
        path = f"{self.root}/store/assignment"
        self.replicas = read_replicas(self.again(lambda: self.client.get(path))[0])

    def close(self) -> None:
        """End the session, and with it the server's node."""
        self.is_closed.set()
        self.client.stop()

    def again(self, ask: Callable[[], T]) -> T:
        """Return the answer, however long ZooKeeper is away; errors of nodes are passed on."""
        while True:
            try:
                return ask()
            except (BadVersionError, NoNodeError, NodeExistsError):
                raise
            except KazooException:
                if self.is_closed.wait(RETRY_SECONDS):
                    raise

    def changed(self, path: str, change: Callable[[bytes], bytes]) -> bytes:
        """Return the data that a node has been given, in place of that which it had before."""
        pause = CONFLICT_SECONDS_MIN
        while True:
            data, stat = self.again(lambda: self.client.get(path))
            new = change(data)
            if new == data:
                return new
            try:
                self.again(partial(self.client.set, path, new, stat.version))
            except BadVersionError:
                self.is_closed.wait(pause)
                pause = min(2 * pause, CONFLICT_SECONDS_MAX)
            else:
                return new

    # Partitions' metadata

    def begin_session(self, partition: int, generation: int) -> Metadata:
        """Return the metadata with the number of the new session. Raises GenerationError."""
        path = f"{self.root}/store/partition/{partition}"
        try:
            self.again(lambda: self.client.get(path))
        except NoNodeError:
            try:
                empty = Metadata().to_bytes(partition)
                self.again(lambda: self.client.create(path, empty))
            except NodeExistsError:
                pass

        def next_session(data: bytes) -> bytes:
            now = read_metadata(data)
            if now.generation > generation:
                raise GenerationError(f"partition {partition} is in generation {now.generation}")
            new = replace(now, generation=generation, session=now.session + 1)
            return new.to_bytes(partition)

        return read_metadata(self.changed(path, next_session))

    def write_states(
        self,
        partition: int,
        session: int,
        change: Callable[[Mapping[str, tuple[int, int]]], Mapping[str, tuple[int, int]]],
    ) -> Metadata:
        """Return the metadata with the changed states. Raises FencedError."""

        def with_states(data: bytes) -> bytes:
            now = read_metadata(data)
            if now.session != session:
                raise FencedError(f"partition {partition} is in session {now.session}")
            states = change(now.states)
            # The same states in another order are no change.
            return data if states == now.states else replace(now, states=states).to_bytes(partition)

        path = f"{self.root}/store/partition/{partition}"
        return read_metadata(self.changed(path, with_states))


class Member:
    """A server as ZooKeeper has it: its ID, its node, the partitions that it is given."""

    def __init__(
        self,
        tree: Tree,
        host: str,
        port: int,
        adopt: Callable[[Mapping[int, int]], None],
        say: Callable[[str], None],
    ) -> None:
        """`adopt` is told the generations of the server's partitions."""
        self._tree = tree
        self._client = tree.client
        self._parent = f"{tree.root}/serverDescriptors"
        self._adopt = adopt
        self._say = say
        self._woken = threading.Event()
        self._version = -1
        self._node: str | None = None

        def next_number(data: bytes) -> bytes:
            return struct.pack(">i", struct.unpack(">i", data)[0] + 1)

        number = tree.changed(f"{tree.root}/ids/server", next_number)
        self.descriptor = Descriptor(struct.unpack(">i", number)[0], host, port)
        self._client.add_listener(lambda _: self._woken.set())
        self._register()
        threading.Thread(target=self._follow, name="membership", daemon=True).start()

    @property
    def server(self) -> int:
        return self.descriptor.server

    def leave(self) -> None:
        node, self._node = self._node, None
        self._tree.is_closed.set()
        if node is not None:
            try:
                self._client.delete(node)
            except KazooException:
                self._say("the server's node was left to the end of the session")

    def _register(self) -> None:
        """Create the server's node. If the connection is lost meanwhile there may be two of them,
        as the original has it; both end with the session."""
        place, data = f"{self._parent}/s_", self.descriptor.to_bytes()
        self._node = self._tree.again(
            lambda: self._client.create(place, data, ephemeral=True, sequence=True)
        )
        self._say(f"server {self.server} is {self._node}")

    def _follow(self) -> None:
        while not self._tree.is_closed.is_set():
            self._woken.clear()
            try:
                is_current = self._look()
            except (NoNodeError, BadVersionError):
                is_current = False
                self._tree.is_closed.wait(LOOK_SECONDS)
            except KazooException:
                is_current = False
                self._tree.is_closed.wait(RETRY_SECONDS)
            if is_current:
                self._woken.wait()

    def _look(self) -> bool:
        """Read all anew, and act on it; False: it changed meanwhile, look again."""
        if self._node is not None and self._client.exists(self._node) is None:
            self._register()
        data, stat = self._client.get(self._parent, watch=self._wake)
        names, later = self._client.get_children(self._parent, watch=self._wake, include_data=True)
        if later.cversion != stat.cversion:
            return False
        members = {}
        for name in names:
            own, _ = self._client.get(f"{self._parent}/{name}", watch=self._wake)
            found = read_descriptor(own)
            members[found.server] = found
        now = read_assignment(data)
        if now.cversion == stat.cversion:
            if stat.version != self._version:
                self._version = stat.version
                self._adopt(now.servers.get(self.server, {}))
        elif members and min(members) == self.server:
            self._coordinate(now, stat.cversion, stat.version, members)
        return True

    def _coordinate(
        self, now: Assignment, cversion: int, version: int, members: Mapping[int, Descriptor]
    ) -> None:
        """Raises BadVersionError: another one was quicker."""
        preferred = {server: each.preferred for server, each in members.items()}
        try:
            new = assign(now, cversion, self._tree.partitions, preferred)
        except IncompleteError as error:
            self._say(str(error))
            return
        self._client.set(self._parent, new.to_bytes(), version)
        self._say(f"assigned as the coordinator: {dict(new.servers)}")

    def _wake(self, _: object) -> None:
        self._woken.set()
