"""Versions 0 to 4 of the client protocol, translated: they say one transaction per message.

Owns both directions: `joined` makes batches of the messages that arrive, `apart` takes batches
apart for a peer without them. Servers and clients know the messages of version 5 only. Must not
know a connection, nor what a batch is for. A refusal for which the older versions have no word is
said by no message; their clients learn of it from the feed.
Source: Client-Server Communication, "Append Request", "Feed Data", "Lock Failure".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeVar, cast

from waltz.arrays import np
from waltz.record import REQUEST_ID_BYTES
from waltz.types import PartitionId, TransactionId
from waltz.wire.batch_protocol import (
    AppendBatch,
    AppendRejected,
    DataWanted,
    FeedBatch,
    Reason,
    Rejection,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    FEED_DATA,
    FEED_DATA_FRAME,
    AppendRequest,
    FeedData,
    LockFailure,
)
from waltz.wire.columns import (
    LOCK_KINDS,
    AppendColumns,
    Bodies,
    FeedColumns,
    expanded_request_ids,
    request_id_runs,
)
from waltz.wire.message import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray

M = TypeVar("M", bound=Message)

_ONE_BY_ONE: Final = frozenset({AppendRequest, FeedData, LockFailure})


# From messages of one transaction to batches


def joined(messages: Sequence[Message]) -> Sequence[Message]:
    """Return `messages` with batches in the place of messages of one transaction each.

    Messages about one partition stay in order, and messages that follow on each other become one
    batch, which stands where its first message stood.
    """
    if _ONE_BY_ONE.isdisjoint(map(type, messages)):
        return messages
    runs: list[list[Message]] = []
    open_runs: dict[PartitionId, list[Message]] = {}
    for message in messages:
        partition_id = getattr(message, "partition_id", None)
        run = None if partition_id is None else open_runs.get(partition_id)
        if run is not None and _continues(run[-1], message):
            run.append(message)
            continue
        runs.append([message])
        if partition_id is not None:
            open_runs[partition_id] = runs[-1]
    return [*chain.from_iterable(map(_batches, runs))]


def _continues(last: Message, message: Message) -> bool:
    """Whether `message` goes into one batch with `last`, or is cut off from the same columns."""
    if type(message) is not type(last):
        return False
    if type(message) is AppendRequest:
        return message.request_id[:3] == cast(AppendRequest, last).request_id[:3]
    if type(message) is FeedData:
        return message.transaction_id == cast(FeedData, last).transaction_id + 1
    return False


def _batches(run: Sequence[Message]) -> Sequence[Message]:
    first = run[0]
    if type(first) is AppendRequest:
        return [*_append_batches(cast(Sequence[AppendRequest], run))]
    if type(first) is FeedData:
        return (_feed_batch(cast(Sequence[FeedData], run)),)
    if type(first) is LockFailure:
        number = first.request_id.sequence_number
        rejection = Rejection(number, 1, Reason.LOCKED, first.transaction_id, 0)
        return (AppendRejected(first.request_id, (rejection,)),)
    return run


def _append_batches(requests: Sequence[AppendRequest]) -> Iterator[AppendBatch]:
    """Yield `requests` of one client and generation, in order: a batch per run of sequence numbers
    that follow on each other. The columns of all batches are made at once."""
    count = len(requests)
    kinds = [
        locks
        for each in requests
        for locks in (each.write_locks, each.read_locks, each.append_locks)
    ]
    hashes = np.array([*chain.from_iterable(kinds)], np.int32)
    columns = AppendColumns(
        np.array([each.client_high_water_mark for each in requests], np.int64),
        np.array([each.header for each in requests], np.int32),
        np.array([*map(len, kinds)], np.uint16).reshape(-1, LOCK_KINDS),
        hashes,
        Bodies(
            [each.data for each in requests],
            np.array([each.checksum for each in requests], np.uint32),
        ),
    )
    numbers = [each.request_id.sequence_number for each in requests]
    breaks = [place for place in range(1, count) if numbers[place] != numbers[place - 1] + 1]
    if not breaks:
        yield AppendBatch(requests[0].request_id, columns)
        return
    for start, part in zip((0, *breaks), columns.split(breaks), strict=True):
        yield AppendBatch(requests[start].request_id, part)


def _feed_batch(messages: Sequence[FeedData]) -> FeedBatch:
    """Return transactions with IDs that follow on each other as one batch."""
    first = messages[0]
    request_ids = np.array([each.request_id for each in messages], ">i4")
    return FeedBatch(
        first.request_id.partition_id,
        first.transaction_id,
        FeedColumns(
            request_id_runs(request_ids.view(np.uint8).reshape(-1, REQUEST_ID_BYTES)),
            np.array([each.header for each in messages], np.int32),
            None,
        ),
    )


# From batches to messages of one transaction


def apart(message: Message) -> Sequence[Message]:
    """Return the messages of versions 0 to 4 that say what `message` says, perhaps none.

    A message that has no counterpart is returned as it is, and cannot be encoded.
    """
    match message:
        case AppendBatch():
            return [*_append_requests(message)]
        case AppendRejected():
            return [*_lock_failures(message)]
        case DataWanted():
            return ()  # the data is fetched transaction by transaction
        case _:
            return (message,)


def _append_requests(batch: AppendBatch) -> Iterator[AppendRequest]:
    columns, first = batch.appends, batch.request_id
    hashes = iter(columns.lock_hashes.tolist())
    rows = zip(
        columns.client_high_water_marks.tolist(),
        columns.lock_counts.tolist(),
        columns.headers.tolist(),
        columns.bodies.data,
        columns.bodies.checksums.tolist(),
        strict=True,
    )
    for number, (mark, (writes, reads, appends), header, data, checksum) in enumerate(
        rows, first.sequence_number
    ):
        yield AppendRequest(
            first._replace(sequence_number=number),
            mark,
            tuple(islice(hashes, writes)),
            tuple(islice(hashes, reads)),
            tuple(islice(hashes, appends)),
            header,
            data,
            checksum,
        )


def _lock_failures(rejected: AppendRejected) -> Iterator[LockFailure]:
    """Yield a message per append that was refused for a lock. Versions 0 to 4 have no message for
    other refusals."""
    for first, length, reason, transaction_id, _ in rejected.rejections:
        if reason is Reason.LOCKED:
            for number in range(first, first + length):
                request_id = rejected.request_id._replace(sequence_number=number)
                yield LockFailure(request_id, transaction_id)


def feed_frames(message: FeedBatch, version: int) -> bytes:
    """Return the feed data frames of the transactions of `message`, back to back.

    The frames of versions 0 to 4 have one size, so they are columns of one array.
    """
    headers = message.feed.headers
    first: TransactionId = message.first_transaction_id
    frames: NDArray[np.void] = np.empty(len(headers), _feed_frame())
    frames["magic"] = CLIENT_CODEC.magic
    frames["version"] = version
    frames["length"] = FEED_DATA.size
    frames["type"] = FeedData.CODE
    frames["request_id"] = expanded_request_ids(message.feed.runs)
    frames["transaction_id"] = np.arange(first, first + len(headers))
    frames["header"] = headers
    return frames.tobytes()


@cache
def _feed_frame() -> np.dtype[np.void]:
    found = np.dtype(
        [
            ("magic", "u1"),
            ("version", ">i2"),
            ("length", ">i4"),
            ("type", "u1"),
            ("request_id", ">i4", (4,)),
            ("transaction_id", ">i8"),
            ("header", ">i4"),
        ]
    )
    assert found.itemsize == FEED_DATA_FRAME.size
    return found
