"""A server that speaks and decides as the Java original's does, and shares no code with ours.

It answers clients with the frames that the original printed, in versions 0 to 4, takes part in the
assignment in ZooKeeper (`golden_tree`), and writes, reads and recovers partitions as the original
does (`golden_store`, `golden_recovery`). It is written from the descriptions of protocols, nodes
and rules: it is no Java process, and does not show what the original's own threads, caches and
time-outs do.

Preferred partitions are not played: such a request ends the connection. Each feed is a thread, so
near and far ones are served alike. An append that waits for room when its session ends is written
in the next one; the original forgets it.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import ssl
import struct
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Mapping
from typing import Final

from tests.interop.conversation import FRAMES, HEADER_BYTES, patched
from tests.rolling.golden_link import HEADER, Link, RefusedError, Storages
from tests.rolling.golden_storage import accepting_tls, framed
from tests.rolling.golden_store import (
    NotFoundError,
    PartitionClosedError,
    Request,
    Say,
    StorePartition,
)
from tests.rolling.golden_tree import GenerationError, Member, Tree

LOCK_SLOTS: Final = 30_000
LOCK_HASHES: Final = 3
QUEUE_MAX: Final = 100
"""Appends of a partition that wait; the connection of the next one is read no further."""
FEED_MIN: Final = 100
"""Transactions that a feed request brings at least before the feed is suspended."""
HEADERS_MAX: Final = 64
END_SECONDS_MAX: Final = 10.0
"""Seconds that a server which was told to end waits for a ZooKeeper that is away."""
LOOK_SECONDS: Final = 1.0
"""Seconds after which a feed without news looks whether its connection is still there."""

HEAD_BYTES: Final = 17
"""Bytes of a message before its fields: its type and its request ID."""
READY, NOT_READY, AHEAD = 0, 1, 2
MOUNT, APPEND, FEED, DATA, FLUSH, MARK = 0, 2, 3, 6, 8, 11
STORAGES, PARTITIONS, HEALTH = 13, 15, 21
SINCE: Final = {STORAGES: 1, PARTITIONS: 2, HEALTH: 4}
"""The first version that has the request; the others are in all versions."""


class LockTable:
    """The high-water marks of locks by slot, and the slots of what is in flight."""

    def __init__(self, mark: int, size: int = LOCK_SLOTS) -> None:
        self._lock = threading.Lock()
        self._size = size
        self.reset(mark)

    def reset(self, mark: int) -> None:
        with self._lock:
            self._marks = [mark] * self._size
            self._in_flight: set[int] = set()

    def begin(self, checked: list[int], moved: list[int]) -> bool:
        """Hold the slots of the locks that the append will move; False: some lock is held."""
        with self._lock:
            if self._in_flight & self._slots([*checked, *moved]):
                return False
            self._in_flight |= self._slots(moved)
            return True

    def estimate(self, checked: list[int]) -> int:
        """Return an upper bound of the newest transaction with one of these locks."""
        with self._lock:
            return max(
                (min(self._marks[slot] for slot in slots_of(lock, self._size)) for lock in checked),
                default=-1,
            )

    def release(self, moved: list[int], mark: int | None) -> None:
        """Give the slots free; `mark`: of the transaction, None: it was not written."""
        with self._lock:
            slots = self._slots(moved)
            self._in_flight -= slots
            if mark is not None:
                for slot in slots:
                    self._marks[slot] = mark

    def _slots(self, locks: list[int]) -> set[int]:
        return {slot for lock in locks for slot in slots_of(lock, self._size)}


def slots_of(lock: int, size: int = LOCK_SLOTS) -> list[int]:
    """Return the slots of a lock's hash."""
    found = []
    for _ in range(LOCK_HASHES):
        lock = (lock * 1_103_515_245 + 12_345) & 0xFFFFFFFF
        found.append((lock & 0x3FFFFFFF) % size)
    return found


class Append:
    """An append request, taken apart. Raises struct.error, ValueError: it is none."""

    def __init__(self, payload: bytes, version: int) -> None:
        self.request_id = payload[1:HEAD_BYTES]
        self.generation, self.partition = struct.unpack_from(">ii", self.request_id, 4)
        (self.mark,) = struct.unpack_from(">q", payload, HEAD_BYTES)
        place = HEAD_BYTES + 8
        locks: list[list[int]] = [[], [], []]
        for kind in range(min(3, version + 1)):
            (count,) = struct.unpack_from(">i", payload, place)
            locks[kind] = list(struct.unpack_from(f">{count}i", payload, place + 4))
            place += 4 + 4 * count
        self.writes, self.reads, self.appends = locks
        self.header = payload[place : place + 4]
        self.body = payload[place + 4 :]
        (length,) = struct.unpack_from(">i", self.body)
        data, (checksum,) = self.body[4:-4], struct.unpack(">I", self.body[-4:])
        if length != len(data) or zlib.crc32(data) != checksum:
            raise ValueError("length or checksum of an append")


class Partition:
    """A partition while it is this server's: its clients, its locks, the thread that appends."""

    def __init__(self, store: StorePartition) -> None:
        self.store = store
        self.number = store.number
        self._lock = threading.Lock()
        self._clients: dict[int, tuple[Client, int, int]] = {}
        """By client ID the connection that mounted, with its generation and sequence number."""
        self._queue: queue.Queue[Callable[[LockTable], None]] = queue.Queue(QUEUE_MAX)
        name = f"appends of {self.number}"
        threading.Thread(target=self._append, name=name, daemon=True).start()

    # Clients

    def register(self, client: Client, client_id: int, generation: int, sequence: int) -> None:
        """A newer mount replaces an older one of the same client."""
        with self._lock:
            before = self._clients.get(client_id)
            if before is None or (generation, sequence) > before[1:]:
                self._clients[client_id] = (client, generation, sequence)

    def takes(self, client: Client) -> bool:
        with self._lock:
            if client.client_id is None:
                return False
            found = self._clients.get(client.client_id)
            return found is not None and found[2] == client.sequence

    def forget(self, client: Client) -> None:
        with self._lock:
            for client_id, (each, _, _) in list(self._clients.items()):
                if each is client:
                    del self._clients[client_id]

    # The thread that appends

    def put(self, work: Callable[[LockTable], None]) -> None:
        """Have something done after all that was appended before; wait for room."""
        while not self.store.is_closed:
            try:
                self._queue.put(work, timeout=LOOK_SECONDS)
            except queue.Full:
                continue
            return

    def flush(self, then: Callable[[int], None]) -> None:
        """Have `then` be told the high-water mark once all earlier appends are decided."""
        self.put(lambda _: then(self.store.flush()))

    def append(self, client: Client, request: Append) -> None:
        self.put(lambda table: self._take(table, client, request))

    def _append(self) -> None:
        table: LockTable | None = None
        while not self.store.is_closed:
            try:
                if table is None:
                    table = LockTable(self.store.flush())
                work = self._queue.get(timeout=LOOK_SECONDS)
                work(table)
            except queue.Empty:
                pass
            except PartitionClosedError:
                return
            except GenerationError as error:
                self.store.say(f"nothing is done: {error}")
                if table is None:
                    # The original never comes back from this while the partition is its own.
                    self._wait_for_generation()

    def _wait_for_generation(self) -> None:
        store, now = self.store, self.store.generation
        with store.changed:
            store.changed.wait_for(lambda: store.is_closed or store.generation > now)

    def _take(self, table: LockTable, client: Client, request: Append) -> None:
        checked, moved = request.writes + request.reads, request.writes + request.appends
        attempts = 0
        while not table.begin(checked, moved):
            attempts += 1
            mark = self.store.flush()
            if attempts > 1:
                table.reset(mark)
        estimate = table.estimate(checked)
        if estimate > request.mark:
            table.release(moved, None)
            client.answer("LockFailure", request.request_id, struct.pack(">q", estimate))
            return
        given = Request(
            request.request_id,
            request.generation,
            request.header,
            request.body,
            lambda mark: table.release(moved, mark),
        )
        try:
            self.store.append(given)
        except GenerationError:
            table.release(moved, None)
            raise


class Client:
    """A connection of a client, and the thread that reads it."""

    def __init__(self, server: GoldenServer, link: Link) -> None:
        self._server = server
        self._link = link
        self.client_id: int | None = None
        """The client ID in the connection's first message."""
        self.sequence: int | None = None
        """The connection's sequence number, from its first mount request."""
        self.is_ended = False

    def serve(self) -> None:
        """Raises OSError, struct.error, ValueError: the connection has ended, or must end."""
        while True:
            payload = self._link.read()
            code, request_id = payload[0], payload[1:HEAD_BYTES]
            client_id, generation, number, _ = struct.unpack(">iiii", request_id)
            if self.client_id is None:
                self.client_id = client_id
            if self._link.version < SINCE.get(code, 0):
                raise ValueError(f"no request {code} in version {self._link.version}")
            if code in SINCE:
                self._tell(code, request_id)
            elif code in (MOUNT, APPEND, FEED, DATA, FLUSH, MARK):
                partition = self._server.partitions.get(number)
                self._ask(partition, code, request_id, payload, generation)
            else:
                raise ValueError(f"request {code} is not played")

    def end(self) -> None:
        self.is_ended = True
        for each in list(self._server.partitions.values()):
            each.forget(self)
        self._link.close()

    # Answers

    def answer(self, name: str, request_id: bytes, rest: bytes = b"") -> None:
        """Send a frame of the original's length, if the connection is still there."""
        golden = FRAMES[f"V{self._link.version} {name}"]
        assert len(golden) == HEADER_BYTES + HEAD_BYTES + len(rest)
        self._send(patched(golden, [(1, request_id + rest)]))

    def answer_longer(self, name: str, request_id: bytes, rest: bytes) -> None:
        """Send a frame whose length is its own."""
        golden = f"V{self._link.version} {name}"
        code = FRAMES[golden][HEADER_BYTES : HEADER_BYTES + 1]
        self._send(framed(golden, code + request_id + rest))

    def answer_mount(self, request_id: bytes, state: int) -> None:
        golden = FRAMES[f"V{self._link.version} MountResponse state={state}"]
        self._send(patched(golden, [(1, request_id)]))

    def _send(self, frame: bytes) -> None:
        try:
            self._link.send(frame)
        except OSError:
            self.is_ended = True

    # Requests

    def _ask(
        self,
        partition: Partition | None,
        code: int,
        request_id: bytes,
        payload: bytes,
        generation: int,
    ) -> None:
        if code == APPEND:
            append = Append(payload, self._link.version)
            if partition is not None and partition.takes(self):
                partition.append(self, append)
            return
        form = {MOUNT: ">qq", FEED: ">q", DATA: ">q"}.get(code, ">")
        fields = struct.unpack(form, payload[HEAD_BYTES:])
        if partition is None:
            if code == MOUNT:
                self.answer_mount(request_id, NOT_READY)
            elif code == DATA:
                self._refuse(request_id, fields[0], "partition not ready")
        elif code == MOUNT:
            self._mount(partition, request_id, generation, *fields)
        elif code == FEED and partition.takes(self):
            self._feed(partition, request_id, *fields)
        elif code == DATA:
            self._fetch(partition, request_id, *fields)
        elif code == FLUSH:
            partition.flush(
                lambda mark: self.answer("FlushResponse", request_id, struct.pack(">q", mark))
            )
        elif code == MARK:
            mark = partition.store.mark
            known = -(2**63) if mark is None else mark
            self.answer("HwmResponse", request_id, struct.pack(">q", known))

    def _mount(
        self, partition: Partition, request_id: bytes, generation: int, mark: int, sequence: int
    ) -> None:
        if self.sequence is None:
            self.sequence = sequence
        assert self.client_id is not None
        partition.register(self, self.client_id, generation, self.sequence)
        if not partition.takes(self):
            return

        def begin(end: int) -> None:
            if mark > end:
                self.answer_mount(request_id, AHEAD)
                return
            work = (partition, mark, end, lambda: self.answer_mount(request_id, READY))
            threading.Thread(target=self._run_feed, args=work, daemon=True).start()

        partition.flush(begin)

    def _feed(self, partition: Partition, request_id: bytes, mark: int) -> None:
        now = partition.store.mark
        if now is None or mark > now:
            raise ValueError(f"a feed from {mark} on, at {now}")
        end = mark + max(now - mark, FEED_MIN)
        work = (partition, mark, end, lambda: self.answer("FeedSuspended", request_id))
        threading.Thread(target=self._run_feed, args=work, daemon=True).start()

    def _run_feed(
        self, partition: Partition, position: int, end: int, then: Callable[[], None]
    ) -> None:
        """Feed the transactions after `position` up to `end`, and then say so."""
        store = partition.store
        while position < end:
            with store.changed:
                while store.mark is None or store.mark <= position:
                    if store.is_closed or self.is_ended:
                        return
                    store.changed.wait(LOOK_SECONDS)
            try:
                headers = store.headers(position + 1, min(HEADERS_MAX, end - position))
            except (GenerationError, PartitionClosedError, NotFoundError) as error:
                store.say(f"a feed has ended: {error!r}")
                return
            for number, request_id, header in headers:
                assert number == position + 1
                self.answer("FeedData", request_id, struct.pack(">q", number) + header)
                position = number
            if self.is_ended:
                return
        then()

    def _fetch(self, partition: Partition, request_id: bytes, number: int) -> None:
        try:
            record = partition.store.record(number)
        except (NotFoundError, GenerationError, PartitionClosedError) as error:
            self._refuse(request_id, number, repr(error))
            return
        rest = struct.pack(">q?", number, True) + record[HEADER.size :]
        self.answer_longer("TxDataResponse ok", request_id, rest)

    def _refuse(self, request_id: bytes, number: int, words: str) -> None:
        rest = struct.pack(">q?i", number, False, len(words)) + words.encode()
        self.answer_longer("TxDataResponse fail", request_id, rest)

    def _tell(self, code: int, request_id: bytes) -> None:
        """Answer what is asked of the whole server."""
        if code == STORAGES:
            found = self._server.reachable()
            rest = struct.pack(">i", len(found))
            for place, is_reached in found.items():
                rest += struct.pack(">i", len(place)) + place.encode()
                rest += struct.pack("?", is_reached)
            self.answer_longer("CheckStorageResp", request_id, rest)
            return
        partitions = sorted(self._server.partitions.items())
        rest = struct.pack(">i", len(partitions))
        if code == PARTITIONS:
            rest += b"".join(struct.pack(">i", number) for number, _ in partitions)
            self.answer_longer("AssignResp", request_id, rest)
            return
        for number, each in partitions:
            rest += struct.pack(">i?", number, each.store.is_healthy)
        self.answer_longer("HealthResp", request_id, rest)


class GoldenServer:
    """The partitions that are this server's now, and its port."""

    def __init__(self, tree: Tree, inside: ssl.SSLContext | None, say: Say) -> None:
        """`inside`: the TLS with which storage nodes are spoken to."""
        self._tree = tree
        self._say = say
        self._storages = Storages(tree.opening, inside)
        self.partitions: dict[int, Partition] = {}

    def adopt(self, generations: Mapping[int, int]) -> None:
        """Begin, raise and end partitions: these are the server's now."""
        for number in set(self.partitions) - set(generations):
            self._say(f"partition {number} is another server's")
            self.partitions.pop(number).store.close()
        for number, generation in generations.items():
            if number in self.partitions:
                self.partitions[number].store.raise_generation(generation)
                continue
            self._say(f"partition {number} begins in generation {generation}")
            given = (self._tree, self._storages, number, generation, self._say)
            self.partitions[number] = Partition(StorePartition(*given))

    def close(self) -> None:
        for each in list(self.partitions.values()):
            each.store.close()

    def reachable(self) -> dict[str, bool]:
        """Return whether each storage node takes a new connection."""
        found = {}
        for place in {each for places in self._tree.replicas.values() for each in places}:
            try:
                self._storages.fresh(place).end()
            except (OSError, RefusedError):
                found[place] = False
            else:
                found[place] = True
        return found

    def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        listening = socket.create_server((host, port))

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._talk, args=(connection, tls), daemon=True).start()

        threading.Thread(target=accept, name="port", daemon=True).start()

    def _talk(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        with connection:
            try:
                client = Client(self, Link(connection, "hello server", b"L", tls))
            except (OSError, struct.error) as error:
                self._say(f"no connection: {error}")
                return
            try:
                client.serve()
            except (OSError, struct.error, ValueError) as error:
                self._say(f"client {client.client_id}: {error}")
            finally:
                client.end()


def say(words: str) -> None:
    """Write a line of the log."""
    now = time.time()
    at = time.strftime("%H:%M:%S", time.localtime(now))
    print(f"{at}.{int(now * 1000) % 1000:03d} {words}", file=sys.stderr, flush=True)


def connecting_tls(given: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS towards storage nodes, to which the certificate is shown; None: no
    certificate is given."""
    if given.tls_cert is None:
        return None
    found = ssl.create_default_context(cafile=given.tls_ca)
    found.load_cert_chain(given.tls_cert)
    return found


class Ending:
    """The end of the process: standard input ends, or SIGTERM comes; an error of a thread, too."""

    def __init__(self) -> None:
        self._is_told = False
        self._hears, self._says = os.pipe()
        os.set_blocking(self._says, False)
        threading.excepthook = self._end_with_any_thread
        # Any thread may be given the signal; what it writes into the pipe wakes the first one.
        signal.set_wakeup_fd(self._says, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._read_to_the_end, daemon=True).start()

    def wait(self) -> None:
        os.read(self._hears, 1)
        self._is_told = True

    def _read_to_the_end(self) -> None:
        sys.stdin.read()
        os.write(self._says, b".")

    def _end_with_any_thread(self, failed: threading.ExceptHookArgs) -> None:
        if not self._is_told:
            traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
            sys.stderr.flush()
            os._exit(1)


def main(arguments: list[str]) -> None:
    """Serve until the end; unknown options are passed over."""
    parser = argparse.ArgumentParser()
    for option in ("--coordinator", "--address"):
        parser.add_argument(option, required=True)
    for option in ("--tls-ca", "--tls-cert"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args(arguments)
    host, _, port = given.address.rpartition(":")
    tree = Tree(given.coordinator)
    tree.start()
    ending = Ending()
    server = GoldenServer(tree, connecting_tls(given), say)
    # The original registers before it listens.
    member = Member(tree, host, int(port), server.adopt, say)
    server.listen(host, int(port), accepting_tls(given))
    print("ready", flush=True)
    ending.wait()
    say("told to end")
    late = threading.Timer(END_SECONDS_MAX, os._exit, (0,))
    late.daemon = True
    late.start()
    member.leave()
    server.close()
    tree.close()
    say("ended")
    os._exit(0)
