"""Messages between clients and servers: protocol L, versions 0 to 5.

Owns the messages of versions 0 to 4 and their hand-packed fast paths. Version 1 added read locks
and the storage connectivity, 2 append locks, assignments and preferred partitions, 3 the mount
state, 4 the health, 5 logical connections, discovery, batches, reports and questions about clients,
whose messages are declared in files of their own. There is no answer to an append request: success
is seen in the feed.
Source: Client-Server Communication.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, Final
from zlib import crc32

from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX, METADATA_ENTRIES_MAX, PARTITIONS_MAX
from waltz.types import PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import BATCH_MESSAGES
from waltz.wire.client_message import ClientMessage as ClientMessage
from waltz.wire.clients_protocol import CLIENTS_MESSAGES
from waltz.wire.cut_protocol import CUT_MESSAGES
from waltz.wire.denial_protocol import DENIAL_MESSAGES
from waltz.wire.discovery_protocol import DISCOVERY_MESSAGES
from waltz.wire.fields import (
    BOOLEAN,
    CHECKSUM,
    DATA,
    INT,
    LOCK_HASHES,
    LONG,
    NULLABLE_TEXT,
    PARTITION_IDS,
    TEXT,
    Enumeration,
    ListOf,
    Optional,
    Pair,
    Reader,
)
from waltz.wire.history_protocol import HISTORY_MESSAGES, MARKS_MESSAGES
from waltz.wire.lifecycle_protocol import LIFECYCLE_MESSAGES
from waltz.wire.message import (
    Audience,
    ChecksumOf,
    Codec,
    FastPath,
    message,
    only_with,
    only_without,
    since,
)
from waltz.wire.report_protocol import REPORT_MESSAGES

SERVER_GREETING: Final = "Waltz Server"
CLIENT_GREETING: Final = "Waltz Client"

BATCHES_SINCE: Final = 5
"""From this version on there are the messages of `batch_protocol`."""


class MountState(IntEnum):
    READY = 0
    NOT_READY = 1
    CLIENT_AHEAD = 2


class ReadyFlag:
    """A mount state in one boolean: CLIENT_AHEAD cannot be told from NOT_READY."""

    name = "boolean: READY or not"
    size_min = 1

    def write(self, parts: list[bytes], value: MountState) -> None:
        BOOLEAN.write(parts, value is MountState.READY)

    def read(self, reader: Reader) -> MountState:
        return MountState.READY if BOOLEAN.read(reader) else MountState.NOT_READY


READY_FLAG: Final = ReadyFlag()
MOUNT_STATE: Final = Enumeration(MountState)
CONNECTIVITY: Final = ListOf(Pair(TEXT, BOOLEAN), METADATA_ENTRIES_MAX)
HEALTH: Final = ListOf(Pair(INT, BOOLEAN), PARTITIONS_MAX)


@message(0, audience=Audience.PARTITION)
class MountRequest(ClientMessage):
    """Ask a server to feed a partition from the client's high-water mark on.

    `connection_sequence` counts the client's connections to this server, so that a newer one
    replaces an older one. Source: Client-Server Communication, "Mount Request".
    """

    client_high_water_mark: Annotated[TransactionId, LONG]
    connection_sequence: Annotated[int, LONG]


@message(1, audience=Audience.STREAM)
class MountResponse(ClientMessage):
    """Say that the client has been fed all there was at the mount, or why not."""

    state: Annotated[MountState, READY_FLAG, MOUNT_STATE, since(3)]


@message(2, audience=Audience.PARTITION)
class AppendRequest(ClientMessage):
    """Ask a server to append one transaction to a partition's log.

    `data` carries its CRC-32 from the client to the disk: verified by every decoder, recomputed by
    none. Source: Client-Server Communication, "Append Request".
    """

    client_high_water_mark: Annotated[TransactionId, LONG]
    write_locks: Annotated[tuple[int, ...], LOCK_HASHES]
    read_locks: Annotated[tuple[int, ...], LOCK_HASHES, since(1)]
    append_locks: Annotated[tuple[int, ...], LOCK_HASHES, since(2)]
    header: Annotated[int, INT]
    data: Annotated[bytes, DATA]
    checksum: Annotated[int, CHECKSUM, ChecksumOf("data")]


@message(3, audience=Audience.PARTITION)
class FeedRequest(ClientMessage):
    """Ask for the transactions after the client's high-water mark."""

    client_high_water_mark: Annotated[TransactionId, LONG]


@message(4, audience=Audience.STREAM)
class FeedData(ClientMessage):
    """One transaction of the feed.

    The request ID is that of the append which made the transaction, so that its author recognises
    it. Source: Client-Server Communication, "Feed Data", where it is said to be the feed request's.
    """

    transaction_id: Annotated[TransactionId, LONG]
    header: Annotated[int, INT]


@message(5, audience=Audience.STREAM)
class FeedSuspended(ClientMessage):
    """Say that a feed request has been served in full."""


@message(6, audience=Audience.PARTITION)
class TransactionDataRequest(ClientMessage):
    transaction_id: Annotated[TransactionId, LONG]


@message(7, audience=Audience.ASKER)
class TransactionDataResponse(ClientMessage):
    """The data of one transaction with its CRC-32, or, with `data` None, why there is none."""

    transaction_id: Annotated[TransactionId, LONG]
    data: Annotated[bytes | None, Optional(DATA)]
    checksum: Annotated[int, CHECKSUM, only_with("data", absent=0), ChecksumOf("data")]
    error: Annotated[str | None, NULLABLE_TEXT, only_without("data", absent=None)]


@message(8, audience=Audience.PARTITION)
class FlushRequest(ClientMessage):
    """Ask to be told when every earlier append of the partition is decided."""


@message(9, audience=Audience.STREAM)
class FlushResponse(ClientMessage):
    """Give the high-water mark after the flush."""

    transaction_id: Annotated[TransactionId, LONG]


@message(10, audience=Audience.STREAM)
class LockFailure(ClientMessage):
    """Refuse an append; `transaction_id` is, by estimate, the one that holds the lock."""

    transaction_id: Annotated[TransactionId, LONG]


@message(11, audience=Audience.PARTITION)
class HighWaterMarkRequest(ClientMessage): ...


@message(12, audience=Audience.ASKER)
class HighWaterMarkResponse(ClientMessage):
    transaction_id: Annotated[TransactionId, LONG]


@message(13, since=1, audience=Audience.SERVER)
class CheckStorageConnectivityRequest(ClientMessage): ...


@message(14, since=1, audience=Audience.ASKER)
class CheckStorageConnectivityResponse(ClientMessage):
    """Whether the server reaches each storage node; the order has no meaning."""

    connectivity: Annotated[tuple[tuple[str, bool], ...], CONNECTIVITY]


@message(15, since=2, audience=Audience.SERVER)
class ServerPartitionsAssignmentRequest(ClientMessage): ...


@message(16, since=2, audience=Audience.ASKER)
class ServerPartitionsAssignmentResponse(ClientMessage):
    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]


@message(17, since=2, audience=Audience.SERVER)
class AddPreferredPartitionRequest(ClientMessage):
    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]


@message(18, since=2, audience=Audience.ASKER)
class AddPreferredPartitionResponse(ClientMessage):
    result: Annotated[bool, BOOLEAN]


@message(19, since=2, audience=Audience.SERVER)
class RemovePreferredPartitionRequest(ClientMessage):
    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]


@message(20, since=2, audience=Audience.ASKER)
class RemovePreferredPartitionResponse(ClientMessage):
    result: Annotated[bool, BOOLEAN]


@message(21, since=4, audience=Audience.SERVER)
class ServerPartitionsHealthRequest(ClientMessage): ...


@message(22, since=4, audience=Audience.ASKER)
class ServerPartitionsHealthResponse(ClientMessage):
    """Whether each partition's last store session was opened; the order has no meaning."""

    health: Annotated[tuple[tuple[PartitionId, bool], ...], HEALTH]


# Fast paths. Type bytes and field order are those of the declarations above, which a property test
# compares them with. What does not fit goes the declared way by returning None.

_MAGIC: Final = ord("L")
_CHECKSUM: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">i")
_COUNT_AND_COUNT: Final = struct.Struct(">ii")
_APPEND_START: Final = struct.Struct(">xiiiiq")
FEED_DATA: Final = struct.Struct(">xiiiiqi")
FEED_DATA_FRAME: Final = struct.Struct(">BhiBiiiiqi")
_DATA_REQUEST: Final = struct.Struct(">xiiiiq")
_DATA_REQUEST_FRAME: Final = struct.Struct(">BhiBiiiiq")
_DATA_RESPONSE_START: Final = struct.Struct(">xiiiiq?i")
_DATA_RESPONSE_FRAME_START: Final = struct.Struct(">BhiBiiiiq?i")
_NO_LOCKS: Final = bytes(12)


def _encode_append(message: AppendRequest, version: int) -> bytes | None:
    write, read, append = message.write_locks, message.read_locks, message.append_locks
    data = message.data
    if (
        version < 2
        or len(data) > DATA_BYTES_MAX
        or max(len(write), len(read), len(append)) > LOCKS_MAX
    ):
        return None
    numbers = len(write) + len(read) + len(append) + 5
    try:
        start = struct.pack(
            f">BhiBiiiiq{numbers}i",
            _MAGIC,
            version,
            _APPEND_START.size + 4 * numbers + len(data) + 4,
            AppendRequest.CODE,
            *message.request_id,
            message.client_high_water_mark,
            len(write),
            *write,
            len(read),
            *read,
            len(append),
            *append,
            message.header,
            len(data),
        )
        return b"".join((start, data, _CHECKSUM.pack(message.checksum)))
    except struct.error:
        return None


def _decode_append(body: bytes, version: int) -> AppendRequest | None:
    if version < 2:
        return None
    try:
        *request_id, mark = _APPEND_START.unpack_from(body)
        position = _APPEND_START.size
        write: tuple[int, ...] = ()
        read: tuple[int, ...] = ()
        append: tuple[int, ...] = ()
        if body.startswith(_NO_LOCKS, position):
            position += len(_NO_LOCKS)
        else:
            write, position = _locks(body, position)
            read, position = _locks(body, position)
            append, position = _locks(body, position)
        header, length = _COUNT_AND_COUNT.unpack_from(body, position)
        position += _COUNT_AND_COUNT.size
        if position + length + 4 != len(body) or not 0 <= length <= DATA_BYTES_MAX:
            return None
        (checksum,) = _CHECKSUM.unpack_from(body, position + length)
    except struct.error:
        return None
    data = body[position : position + length]
    if crc32(data) != checksum:
        return None
    return AppendRequest(
        RequestId._make(request_id), mark, write, read, append, header, data, checksum
    )


def _locks(body: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """Raises struct.error: negative, too many or cut short."""
    (count,) = _COUNT.unpack_from(body, position)
    position += 4
    if count == 0:
        return (), position
    if not 0 < count <= LOCKS_MAX:
        raise struct.error
    return struct.unpack_from(f">{count}i", body, position), position + 4 * count


def _encode_feed_data(message: FeedData, version: int) -> bytes | None:
    try:
        return FEED_DATA_FRAME.pack(
            _MAGIC,
            version,
            FEED_DATA.size,
            FeedData.CODE,
            *message.request_id,
            message.transaction_id,
            message.header,
        )
    except struct.error:
        return None


def _decode_feed_data(body: bytes, _: int) -> FeedData | None:
    if len(body) != FEED_DATA.size:
        return None
    client_id, generation, partition_id, number, transaction_id, header = FEED_DATA.unpack(body)
    return FeedData(RequestId(client_id, generation, partition_id, number), transaction_id, header)


def _encode_data_request(message: TransactionDataRequest, version: int) -> bytes | None:
    try:
        return _DATA_REQUEST_FRAME.pack(
            _MAGIC,
            version,
            _DATA_REQUEST.size,
            TransactionDataRequest.CODE,
            *message.request_id,
            message.transaction_id,
        )
    except struct.error:
        return None


def _decode_data_request(body: bytes, _: int) -> TransactionDataRequest | None:
    if len(body) != _DATA_REQUEST.size:
        return None
    client_id, generation, partition_id, number, transaction_id = _DATA_REQUEST.unpack(body)
    return TransactionDataRequest(
        RequestId(client_id, generation, partition_id, number), transaction_id
    )


def _encode_data_response(message: TransactionDataResponse, version: int) -> bytes | None:
    data = message.data
    if data is None or message.error is not None or len(data) > DATA_BYTES_MAX:
        return None
    try:
        start = _DATA_RESPONSE_FRAME_START.pack(
            _MAGIC,
            version,
            _DATA_RESPONSE_START.size + len(data) + 4,
            TransactionDataResponse.CODE,
            *message.request_id,
            message.transaction_id,
            True,
            len(data),
        )
        return b"".join((start, data, _CHECKSUM.pack(message.checksum)))
    except struct.error:
        return None


def _decode_data_response(body: bytes, _: int) -> TransactionDataResponse | None:
    position = _DATA_RESPONSE_START.size
    if len(body) < position + 4 or body[position - 5] != 1:
        return None
    *request_id, transaction_id, _, length = _DATA_RESPONSE_START.unpack_from(body)
    if position + length + 4 != len(body) or not 0 <= length <= DATA_BYTES_MAX:
        return None
    data = body[position : position + length]
    (checksum,) = _CHECKSUM.unpack_from(body, position + length)
    if crc32(data) != checksum:
        return None
    return TransactionDataResponse(
        RequestId._make(request_id), transaction_id, data, checksum, None
    )


CLIENT_CODEC: Final = Codec(
    _MAGIC,
    (0, 1, 2, 3, 4, 5),
    (
        MountRequest,
        MountResponse,
        AppendRequest,
        FeedRequest,
        FeedData,
        FeedSuspended,
        TransactionDataRequest,
        TransactionDataResponse,
        FlushRequest,
        FlushResponse,
        LockFailure,
        HighWaterMarkRequest,
        HighWaterMarkResponse,
        CheckStorageConnectivityRequest,
        CheckStorageConnectivityResponse,
        ServerPartitionsAssignmentRequest,
        ServerPartitionsAssignmentResponse,
        AddPreferredPartitionRequest,
        AddPreferredPartitionResponse,
        RemovePreferredPartitionRequest,
        RemovePreferredPartitionResponse,
        ServerPartitionsHealthRequest,
        ServerPartitionsHealthResponse,
        *LIFECYCLE_MESSAGES,
        *DISCOVERY_MESSAGES,
        *BATCH_MESSAGES,
        *REPORT_MESSAGES,
        *CLIENTS_MESSAGES,
        *CUT_MESSAGES,
        *HISTORY_MESSAGES,
        *MARKS_MESSAGES,
        *DENIAL_MESSAGES,
    ),
    (
        FastPath(AppendRequest, _encode_append, _decode_append),
        FastPath(FeedData, _encode_feed_data, _decode_feed_data),
        FastPath(TransactionDataRequest, _encode_data_request, _decode_data_request),
        FastPath(TransactionDataResponse, _encode_data_response, _decode_data_response),
    ),
)
