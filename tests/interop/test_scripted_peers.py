"""Our client and our store talk to peers that answer with the bytes that the Java original printed.

The peers know how long a frame is, which type it has and where its head lies, and nothing else.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import waltz
from tests.interop.conversation import FRAMES, Conversation, patched, with_versions
from tests.interop.nodes import GENERATION, PARTITIONS, running_nodes, running_server
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment, ServerDescriptor
from waltz.host import ANY_VERSION, Coordinator
from waltz.types import Address, Generation, PartitionId, ServerId
from waltz.wire.client_protocol import CLIENT_CODEC

pytestmark = pytest.mark.processes

PARTITION = 2
HEADER_BYTES = 7
Answer = Callable[[bytes], Sequence[bytes]]
"""From the payload of a request to the frames that answer it."""


class ScriptedPeer:
    """Listens at `address`, says `hello`, and answers by `script`, which knows requests by type."""

    def __init__(self, address: Address, hello: bytes, script: dict[int, Answer]) -> None:
        self.heard: list[bytes] = []
        """Payloads of all requests."""
        self.hellos: list[bytes] = []
        self._hello = hello
        self._script = script
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, address.host, address.port)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(60)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._hello)
            while True:
                header = await reader.readexactly(HEADER_BYTES)
                payload = await reader.readexactly(struct.unpack(">i", header[3:])[0])
                if header[:1] == b"H":
                    self.hellos.append(header + payload)
                elif payload:
                    self.heard.append(payload)
                    for frame in self._script[payload[0]](payload):
                        writer.write(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)


@contextmanager
def scripted(address: Address, hello: bytes, script: dict[int, Answer]) -> Iterator[ScriptedPeer]:
    peer = ScriptedPeer(address, hello, script)
    try:
        yield peer
    finally:
        peer.close()


# Our client and a server of the original


class From100(waltz.WaltzClientCallbacks):
    """Has applied everything up to transaction 99."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, int, bytes]] = []
        self.has_applied = threading.Event()

    def get_client_high_water_mark(self, partition_id: int) -> int:
        return 99

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        self.applied.append((transaction.transaction_id, transaction.header, transaction.data))
        self.has_applied.set()


def as_asked(name: str) -> Answer:
    """The original's frame with the request's ID, which is ours, in place of its own."""
    return lambda payload: [patched(FRAMES[f"V4 {name}"], [(1, payload[1:17])])]


def own_of(payload: bytes) -> list[bytes]:
    """What feeds an append back: transaction 101 with its request ID and header."""
    places = [(1, payload[1:17]), (17, struct.pack(">q", 101))]
    return [patched(FRAMES["V4 FeedData"], places)]


async def let_serve(door: Coordinator, address: Address) -> None:
    """Write that all partitions are at `address`."""
    paths = ClusterPaths()
    descriptor = ServerDescriptor(ServerId(1), address)
    await door.create(paths.server_node_prefix, descriptor.encode(), sequential=True)
    node = await door.read(paths.server_descriptors)
    held = {PartitionId(number): Generation(GENERATION) for number in range(PARTITIONS)}
    assignment = PartitionAssignment(node.child_version, PARTITIONS, {ServerId(1): held})
    await door.write(paths.server_descriptors, assignment.encode(), version=ANY_VERSION)


def test_our_client_follows_and_writes_at_a_server_of_the_original(tmp_path: Path) -> None:
    """CS-05, PM-31: the transaction of another client, its data, and one of its own."""
    script: dict[int, Answer] = {
        0: as_asked("MountResponse state=0"),
        2: own_of,
        3: lambda _: [FRAMES["V4 FeedData"]],
        6: as_asked("TxDataResponse ok"),
        8: as_asked("FlushResponse"),
        11: as_asked("HwmResponse"),
    }
    with running_nodes(tmp_path, server=False, storage=False) as nodes:
        nodes.loop.ask(lambda door: let_serve(door, nodes.server))
        callbacks = From100()
        with (
            scripted(nodes.server, FRAMES["hello server"], script) as peer,
            waltz.open_client(str(nodes.coordinator), callbacks, partitions=[PARTITION]) as client,
        ):
            assert callbacks.has_applied.wait(60)
            assert callbacks.applied[0] == (100, 0x11223344, b"hello")
            assert client.get_high_water_mark(PARTITION) == 100
            lock = waltz.PartitionLocalLock("a", 1)
            assert client.append(PARTITION, b"hello", header=7, write_locks=[lock]) == 101
        assert set(peer.hellos) == {with_versions(FRAMES["hello client"], *CLIENT_CODEC.versions)}
        (append,) = [payload for payload in peer.heard if payload[0] == 2]
        golden = FRAMES["V4 Append w[1,-2]"][HEADER_BYTES:]
        assert append[5:13] == golden[5:13], "generation and partition"
        assert append[17:25] == struct.pack(">q", 100), "it has applied that"
        assert append[-13:] == golden[-13:], "length, data and checksum"


# Our store and a storage node of the original


def headed(name: str, *values: tuple[int, bytes]) -> Answer:
    """The original's frame with the head of the request: session, sequence number, partition."""
    return lambda payload: [patched(FRAMES[f"S {name}"], [(1, payload[1:21]), *values])]


def test_our_server_writes_to_a_storage_node_of_the_original(tmp_path: Path) -> None:
    """SN-01, ST-04: a fresh node is voted on, begins the first session, and takes an append."""
    nothing = [(21, struct.pack(">q", -1))]
    script: dict[int, Answer] = {
        1: lambda _: [FRAMES["S Success open"]],
        2: headed("LastSessionInfoResp fresh"),
        4: headed("Success"),
        5: headed("MaxResp", *nothing),
        6: headed("Success"),
        13: headed("MaxResp", *nothing),
    }
    with running_nodes(tmp_path, server=False, storage=False) as nodes:
        hello = FRAMES["hello Waltz Storage Server"]
        with scripted(nodes.data, hello, script) as peer, running_server(tmp_path, nodes):
            with waltz.open_client(str(nodes.coordinator), waltz.NoCallbacks()) as client:
                assert client.append(PARTITION, b"hello", header=0x11223344) == 0
            talk = Conversation(nodes.server)
            talk.say(FRAMES["hello client"], FRAMES["V4 HwmRequest"])
            hello = with_versions(FRAMES["hello server"], *CLIENT_CODEC.versions)
            assert talk.hear() == hello
            talk.close()
        opened = [payload for payload in peer.heard if payload[0] == 1]
        assert set(opened) == {FRAMES["S Open"][HEADER_BYTES:]}
        appended = [
            payload for payload in peer.heard if payload[0] == 6 and payload[21:25] != bytes(4)
        ]
        golden = FRAMES["S Append"][HEADER_BYTES:]
        (ours,) = appended
        assert ours[17:25] == golden[17:25], "the partition, and one record"
        assert ours[25:33] == bytes(8), "its ID"
        assert ours[49:] == golden[49:], "header, data, checksum"
