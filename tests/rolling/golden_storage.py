"""A storage node that speaks and writes as the Java original's does, and shares no code with ours.

It answers with the frames that the original printed, with other numbers and records in their
places, keeps the log in files of the original's layout, and leaves alone what only our release
writes. It begins with a directory of the original. It is written from the descriptions of the
protocol and of the files: it is no Java process, and what the original does with an answer, how
fast, and in which order under load, it does not show.

It begins no new segment; a directory that it is given may have several.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import ssl
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from tests.interop.conversation import FRAMES, HEADER_BYTES, patched
from tests.storage.independent_reader import (
    Entry,
    LogRecord,
    Struct,
    kept_by_the_original,
    parse_control_file,
)

FILE_HEADER_BYTES: Final = 128
STRUCT_BYTES: Final = 36
ENTRY_BYTES: Final = 76
HEAD_BYTES: Final = 21
"""Of a payload at the data port: type, session, sequence number, partition."""
WIRE_RECORD: Final = struct.Struct(">q16sii")
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A request that says that it is larger ends the connection."""

AVAILABLE, ASSIGNED = 1, 4

OPEN, SESSION, SET_MARK, TRUNCATE, APPEND = 1, 2, 4, 5, 6
HEADER, RECORD, LAST, HEADERS, RECORDS = 9, 11, 13, 15, 17


class RefusedError(Exception):
    """The request is answered by a failure with this text."""


def end_of_records(data: bytes, first: int, end: int) -> list[tuple[LogRecord, int]]:
    """Return the records before the transaction ID `end`, each with where it ends."""
    found, position = [], FILE_HEADER_BYTES
    for number in range(first, end):
        own, request, header, length, checksum = struct.unpack_from(">q16siiI", data, position)
        assert own == number
        body = data[position + 36 : position + 36 + length]
        position += 40 + length
        found.append((LogRecord(own, request, header, checksum, body), position))
    return found


class Partition:
    """One partition: its struct in the control file, its segments, its records in memory."""

    def __init__(self, directory: Path, entry: Entry, control: BinaryIO) -> None:
        self._control = control
        self._number = entry.number
        self._structs = list(entry.structs)
        self.current = entry.current
        self.session = self.current.session
        self.records: list[LogRecord] = []
        self._ends: list[int] = []
        """Where each record of the newest segment ends in its file."""
        *_, newest = paths = sorted((directory / str(entry.number)).glob("*.seg"))
        for path in paths:
            data, index = path.read_bytes(), path.with_suffix(".idx").read_bytes()
            first = int(path.stem)
            assert first == len(self.records), f"{path} does not adjoin"
            end = kept_by_the_original(data, index, self.current.local_low_water_mark)
            found = end_of_records(data, first, end)
            self.records += [record for record, _ in found]
            self._first, self._ends = first, [place for _, place in found]
        self._data = newest.open("r+b")
        self._index = newest.with_suffix(".idx").open("r+b")
        self._cut()

    @property
    def last(self) -> int:
        return len(self.records) - 1

    def check(self, session: int) -> None:
        """Adopt a higher session. Raises RefusedError: it is lower, or the partition is off."""
        if not self.current.flags & ASSIGNED:
            raise RefusedError(f"partition not assigned: {self._number}")
        if not self.current.flags & AVAILABLE:
            raise RefusedError(f"partition not available: {self._number}")
        if session < self.session:
            raise RefusedError(f"concurrent update: session {session}, now {self.session}")
        self.session = session

    def set_mark(self, mark: int) -> None:
        if mark < self.current.low_water_mark:
            raise RefusedError(f"low-water mark {mark} is below {self.current.low_water_mark}")
        sequence = self.current.sequence + 1
        struct_now = Struct(self.session, mark, self.last, self.current.flags, sequence)
        place = self._structs.index(self.current) ^ 1
        self._structs[place] = self.current = struct_now
        start = FILE_HEADER_BYTES + ENTRY_BYTES * self._number + 4 + STRUCT_BYTES * place
        os.pwrite(self._control.fileno(), struct_now.to_bytes(), start)
        os.fsync(self._control.fileno())

    def truncate(self, last: int) -> None:
        if last < self.current.low_water_mark:
            raise RefusedError(f"truncation to {last}, below {self.current.low_water_mark}")
        if last + 1 < self._first:
            raise RefusedError("a truncation into an older segment is not played")
        del self.records[last + 1 :]
        del self._ends[last + 1 - self._first :]
        self._cut()

    def append(self, records: list[LogRecord]) -> None:
        """Return once the records are synced."""
        if not records:
            return
        if [each.transaction_id for each in records] != list(
            range(self.last + 1, self.last + 1 + len(records))
        ):
            raise RefusedError(f"transaction out of order: {records[0].transaction_id}")
        end = self._ends[-1] if self._ends else FILE_HEADER_BYTES
        content, entries = bytearray(), bytearray()
        for record in records:
            entries += struct.pack(">q", end + len(content))
            content += record.to_bytes()
            self._ends.append(end + len(content))
        # The original writes an entry before its record.
        place = FILE_HEADER_BYTES + 8 * (len(self._ends) - len(records))
        os.pwrite(self._index.fileno(), entries, place)
        os.pwrite(self._data.fileno(), content, end)
        os.fsync(self._data.fileno())
        self.records += records

    def _cut(self) -> None:
        self._data.truncate(self._ends[-1] if self._ends else FILE_HEADER_BYTES)
        self._index.truncate(FILE_HEADER_BYTES)
        starts = [FILE_HEADER_BYTES, *self._ends][: len(self._ends)]
        os.pwrite(self._index.fileno(), struct.pack(f">{len(starts)}q", *starts), FILE_HEADER_BYTES)
        os.fsync(self._data.fileno())
        os.fsync(self._index.fileno())


def on_wire(record: LogRecord) -> bytes:
    head = WIRE_RECORD.pack(
        record.transaction_id, record.request_id, record.header, len(record.data)
    )
    return head + record.data + struct.pack(">I", record.data_checksum)


def header_on_wire(record: LogRecord) -> bytes:
    return struct.pack(">q16si", record.transaction_id, record.request_id, record.header)


def from_wire(content: bytes) -> list[LogRecord]:
    """Return the records of a list. Raises RefusedError: a checksum is not that of its data."""
    (count,) = struct.unpack_from(">i", content)
    found, place = [], 4
    for _ in range(count):
        number, request, header, length = WIRE_RECORD.unpack_from(content, place)
        place += WIRE_RECORD.size
        data = content[place : place + length]
        (checksum,) = struct.unpack_from(">I", content, place + length)
        if zlib.crc32(data) != checksum:
            raise RefusedError(f"checksum of transaction {number}")
        found.append(LogRecord(number, request, header, checksum, data))
        place += length + 4
    assert place + 1 == len(content), "what follows the records is whether they come offline"
    return found


def framed(like: str, payload: bytes) -> bytes:
    """Return a frame with the header of the original's frame of that name."""
    return FRAMES[like][:3] + struct.pack(">i", len(payload)) + payload


def refusal(like: str, head: bytes, text: str) -> bytes:
    """Return a failure as the original's, with this head and text, and no stack."""
    code = FRAMES[like][HEADER_BYTES : HEADER_BYTES + 1]
    said = text.encode()
    content = code + head + struct.pack(">i", len(said)) + said + bytes(4)
    return framed(like, content)


class GoldenStorage:
    """The partitions of a directory, and both ports."""

    def __init__(self, directory: Path) -> None:
        path = directory / "waltz-storage.ctl"
        found = parse_control_file(path.read_bytes())
        self._opening = found.cluster_key.bytes + struct.pack(">i", len(found.entries))
        control = path.open("r+b")
        self.partitions = {
            entry.number: Partition(directory, entry, control)
            for entry in found.entries
            if entry.is_assigned
        }
        self._lock = threading.Lock()

    def answer_data(self, payload: bytes) -> bytes:
        """Raises ConnectionError: the peer belongs to another cluster."""
        code, head, rest = payload[0], payload[1:HEAD_BYTES], payload[HEAD_BYTES:]
        if code == OPEN:
            self._check_opening(rest)
            return FRAMES["S Success open"]
        session, _, number = struct.unpack(">qqi", head)
        try:
            with self._lock:
                partition = self.partitions.get(number)
                if partition is None:
                    raise RefusedError(f"partition not assigned: {number}")
                partition.check(session)
                return self._answer(partition, code, head, rest)
        except RefusedError as error:
            return refusal("S Failure wrapped", head, str(error))

    def _answer(self, partition: Partition, code: int, head: bytes, rest: bytes) -> bytes:
        def like(name: str, *values: tuple[int, bytes]) -> bytes:
            return patched(FRAMES[f"S {name}"], [(1, head), *values])

        def listed(name: str, show: Callable[[LogRecord], bytes]) -> bytes:
            first, count = struct.unpack(">qi", rest)
            chosen = partition.records[first : first + count] if first >= 0 else []
            code = FRAMES[f"S {name}"][HEADER_BYTES : HEADER_BYTES + 1]
            content = b"".join(map(show, chosen))
            return framed(f"S {name}", code + head + struct.pack(">i", len(chosen)) + content)

        def one(name: str, show: Callable[[LogRecord], bytes]) -> bytes:
            (number,) = struct.unpack(">q", rest)
            if not 0 <= number <= partition.last:
                return like(f"{name} null")
            code = FRAMES[f"S {name}"][HEADER_BYTES : HEADER_BYTES + 1]
            return framed(f"S {name}", code + head + b"\1" + show(partition.records[number]))

        def last() -> bytes:
            return like("MaxResp", (HEAD_BYTES, struct.pack(">q", partition.last)))

        if code == SESSION:
            now = partition.current
            info = struct.pack(">qqq", now.session, now.low_water_mark, now.local_low_water_mark)
            return like("LastSessionInfoResp", (HEAD_BYTES, info))
        if code == SET_MARK:
            partition.set_mark(*struct.unpack_from(">q", rest))
            return like("Success")
        if code == TRUNCATE:
            partition.truncate(*struct.unpack_from(">q", rest))
            return last()
        if code == APPEND:
            partition.append(from_wire(rest))
            return like("Success")
        if code == LAST:
            return last()
        if code == HEADER:
            return one("RecHdrResp", header_on_wire)
        if code == RECORD:
            return one("RecResp", on_wire)
        if code == HEADERS:
            return listed("HdrListResp", header_on_wire)
        assert code == RECORDS, f"the original has no request {code}"
        return listed("RecListResp", on_wire)

    def answer_admin(self, payload: bytes) -> bytes:
        """Raises ConnectionError: the peer belongs to another cluster."""
        code, head, rest = payload[0], payload[1:9], payload[9:]
        if code == FRAMES["A Open"][HEADER_BYTES]:
            self._check_opening(rest)
            return FRAMES["A Success open"]
        if code == FRAMES["A StatusReq"][HEADER_BYTES]:
            states = b"".join(
                struct.pack(">i?", number, bool(each.current.flags & AVAILABLE))
                for number, each in sorted(self.partitions.items())
            )
            code = FRAMES["A StatusResp"][HEADER_BYTES]
            count = struct.pack(">i", len(self.partitions))
            return framed("A StatusResp", bytes([code]) + head + count + states)
        if code == FRAMES["A LsiReq"][HEADER_BYTES]:
            (number,) = struct.unpack_from(">i", rest)
            now = self.partitions[number].current
            info = struct.pack(">qqq", now.session, now.low_water_mark, now.local_low_water_mark)
            return patched(FRAMES["A LsiResp"], [(1, head), (9, rest[:4] + info)])
        if code == FRAMES["A MetricsReq"][HEADER_BYTES]:
            return patched(FRAMES["A MetricsResp"], [(1, head)])
        return refusal("A Failure", head, f"request {code} is not played")

    def _check_opening(self, said: bytes) -> None:
        if said != self._opening:
            raise ConnectionError("cluster key or number of partitions differ")

    def serve(
        self,
        address: str,
        hello: str,
        answer: Callable[[bytes], bytes],
        tls: ssl.SSLContext | None,
    ) -> None:
        host, _, port = address.rpartition(":")
        listening = socket.create_server((host, int(port)))

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                talking = (connection, FRAMES[hello], answer, tls)
                threading.Thread(target=talk, args=talking, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()


def exactly(connection: socket.socket, count: int) -> bytes:
    """Raises ConnectionError: the connection has ended."""
    found = bytearray()
    while len(found) < count:
        data = connection.recv(count - len(found))
        if not data:
            raise ConnectionError("the peer has ended the connection")
        found += data
    return bytes(found)


def talk(
    plain: socket.socket,
    hello: bytes,
    answer: Callable[[bytes], bytes],
    tls: ssl.SSLContext | None,
) -> None:
    with plain:
        try:
            connection = plain if tls is None else tls.wrap_socket(plain, server_side=True)
            connection.sendall(hello)
            while True:
                header = exactly(connection, HEADER_BYTES)
                (length,) = struct.unpack(">i", header[3:])
                if not 0 <= length <= PAYLOAD_BYTES_MAX:
                    return
                payload = exactly(connection, length)
                if header[:1] != b"H" and payload:
                    assert header[1:3] == bytes(2), "the original knows version 0 only"
                    connection.sendall(answer(payload))
        except OSError:
            return


def accepting_tls(given: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS for peers that connect, each of which has to show a certificate; None: no
    certificate is given."""
    if given.tls_cert is None:
        return None
    found = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=given.tls_ca)
    found.load_cert_chain(given.tls_cert)
    found.verify_mode = ssl.CERT_REQUIRED
    return found


def main(arguments: list[str]) -> None:
    """Serve a directory until standard input ends; options that the original has not are passed
    over."""
    parser = argparse.ArgumentParser()
    for option in ("--directory", "--address", "--admin-address"):
        parser.add_argument(option, required=True)
    for option in ("--tls-ca", "--tls-cert"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args(arguments)
    tls = accepting_tls(given)
    node = GoldenStorage(Path(given.directory))
    node.serve(given.address, "hello Waltz Storage Server", node.answer_data, tls)
    node.serve(given.admin_address, "hello Waltz Storage Admin Server", node.answer_admin, tls)
    # Whatever was answered is synced; there is nothing to do in the end.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("ready", flush=True)
    sys.stdin.read()
