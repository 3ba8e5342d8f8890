"""Values that the tests of this folder are made of."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from waltz.record import NewRecord, RecordBatch, pack_records, request_id_bytes
from waltz.server.clients.client_connection import ClientPeer, MessagesReceived
from waltz.server.feeding.outbox import Part
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import (
    BATCHES_SINCE,
    CLIENT_CODEC,
    CLIENT_GREETING,
    SERVER_GREETING,
    AppendRequest,
    ClientMessage,
    FeedData,
    FeedRequest,
    FlushRequest,
    HighWaterMarkRequest,
    MountRequest,
    TransactionDataRequest,
)
from waltz.wire.columns import AppendColumns, Bodies
from waltz.wire.frame import FrameDecoder
from waltz.wire.handshake import Hello, Link
from waltz.wire.logical_link import LogicalLink

PARTITION = PartitionId(3)
VERSION = 4


def tid(number: int) -> TransactionId:
    return TransactionId(number)


def request_id(client: int = 7, sequence: int = 1, generation: int = 1) -> RequestId:
    return RequestId(ClientId(client), Generation(generation), PARTITION, sequence)


def peer(
    connection: int = 1, client: int = 7, sequence: int | None = 0, version: int = VERSION
) -> ClientPeer:
    return ClientPeer(
        connection, ClientId(client), sequence, has_lasting_sequence=version >= BATCHES_SINCE
    )


def record(sequence: int, client: int = 7, data: bytes = b"data", header: int = 0) -> NewRecord:
    return NewRecord(request_id_bytes(request_id(client, sequence)), header, data, crc32(data))


def batch(first: int, count: int, size: int = 8) -> RecordBatch:
    """Records whose sequence number is their ID, with data of `size` bytes."""
    records = [record(first + n, data=b"%0*d" % (size, first + n)) for n in range(count)]
    return pack_records(tid(first), records)


def fed(first: int, count: int, client: int = 7) -> list[FeedData]:
    """The feed of `batch(first, count)`."""
    return [FeedData(request_id(client, n), tid(n), 0) for n in range(first, first + count)]


def mount(mark: int = -1, client: int = 7, sequence: int = 1, connection_sequence: int = 0,
          generation: int = 1) -> MountRequest:  # fmt: skip
    return MountRequest(request_id(client, sequence, generation), tid(mark), connection_sequence)


def feed_request(mark: int = -1, client: int = 7, sequence: int = 1) -> FeedRequest:
    return FeedRequest(request_id(client, sequence), tid(mark))


def append(
    sequence: int,
    mark: int = -1,
    *,
    client: int = 7,
    generation: int = 1,
    write: Sequence[int] = (),
    read: Sequence[int] = (),
    append: Sequence[int] = (),
    data: bytes = b"data",
) -> AppendRequest:
    return AppendRequest(
        request_id(client, sequence, generation),
        tid(mark),
        tuple(write),
        tuple(read),
        tuple(append),
        0,
        data,
        crc32(data),
    )


def together(*requests: AppendRequest) -> AppendBatch:
    """The requests, whose sequence numbers follow on each other, as one message."""
    kinds = [(r.write_locks, r.read_locks, r.append_locks) for r in requests]
    return AppendBatch(
        requests[0].request_id,
        AppendColumns(
            np.array([r.client_high_water_mark for r in requests], np.int64),
            np.array([r.header for r in requests], np.int32),
            np.array([[len(locks) for locks in each] for each in kinds], np.uint16),
            np.array([lock for each in kinds for locks in each for lock in locks], np.int32),
            Bodies([r.data for r in requests], np.array([r.checksum for r in requests], np.uint32)),
        ),
    )


def flush(sequence: int = 1, client: int = 7) -> FlushRequest:
    return FlushRequest(request_id(client, sequence))


def data_request(transaction: int, sequence: int = 1, client: int = 7) -> TransactionDataRequest:
    return TransactionDataRequest(request_id(client, sequence), tid(transaction))


def mark_request(sequence: int = 1, client: int = 7) -> HighWaterMarkRequest:
    return HighWaterMarkRequest(request_id(client, sequence))


def received(sender: ClientPeer, *messages: ClientMessage) -> MessagesReceived:
    """Return the event by which a partition hears `messages`: appends as batches."""
    return MessagesReceived(sender, tuple(joined(messages)))  # type: ignore[arg-type]


def link(version: int = VERSION) -> LogicalLink:
    """Return the server's end of a connection of this version."""
    opened = Link(CLIENT_CODEC.up_to(version), SERVER_GREETING)
    opened.receive(Hello((version,), CLIENT_GREETING).encode())
    return LogicalLink(opened)


def decoded(part: Part, version: int = VERSION) -> list[object]:
    """Return the messages by which a peer of `version` is told `part`."""
    frames = link(version).encode(part)
    decoder = FrameDecoder(CLIENT_CODEC.magic, version, len(frames))
    decoder.receive(frames)
    messages: list[object] = []
    while (body := decoder.next_frame()) is not None:
        messages.append(CLIENT_CODEC.decode(body, version))
    return messages
