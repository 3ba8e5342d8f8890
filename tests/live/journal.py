"""Journals: the contexts of one client in one partition, and what the client was handed, in files.

Owns the bytes of both files. A client's process writes them as it goes, from many threads; the
judge reads them once the process has ended, or has flushed them and said so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

from waltz import LogReader
from waltz.record import request_id_bytes, request_id_from
from waltz.sim.judges.history import ContextVerdict, FedRecord
from waltz.types import RequestId, TransactionId

_FED: Final = struct.Struct(">q16siI")
_EVENT: Final = struct.Struct(">BIqiI")
_REQUEST: Final = struct.Struct(">16sq")
_VERDICTS: Final = tuple(ContextVerdict)
BUFFER_BYTES: Final = 256 * 1024


class Step(Enum):
    """A thing that happens to a context. The detail of an attempt is its header, the detail of an
    ending is its verdict."""

    SUBMITTED = 0
    ATTEMPTED = 1
    ENDED = 2
    PLACED = 3
    """`append` has returned a transaction ID: the data is its digits."""
    REQUESTED = 4
    """An attempt had a request: the data is that and the transaction behind which it may be in the
    log, by `encode_request`."""
    ASKED = 5
    """`outcome` was asked about a request: the data is that and the transaction ID that was
    returned, by `encode_request`."""


class Event(NamedTuple):
    step: Step
    context: int
    moment: int = 0
    """Nanoseconds of this machine's clock."""
    detail: int = 0
    data: bytes = b""


def encode_request(request_id: RequestId, number: int | None) -> bytes:
    return _REQUEST.pack(request_id_bytes(request_id), -1 if number is None else number)


def decode_request(data: bytes) -> tuple[RequestId, int]:
    request_id, number = _REQUEST.unpack(data)
    return request_id_from(request_id), number


def verdict_number(verdict: ContextVerdict) -> int:
    return _VERDICTS.index(verdict)


def verdict_of(number: int) -> ContextVerdict:
    return _VERDICTS[number]


def fed_path(directory: Path, who: str, partition_id: int) -> Path:
    return directory / f"{who}-{partition_id}.fed"


def event_path(directory: Path, who: str, partition_id: int) -> Path:
    return directory / f"{who}-{partition_id}.events"


def encode_fed(records: Iterable[FedRecord]) -> bytes:
    return b"".join(
        [
            _FED.pack(each.transaction_id, request_id_bytes(each.request_id), each.header,
                      len(each.data)) + each.data
            for each in records
        ]
    )  # fmt: skip


def encode_event(event: Event) -> bytes:
    step, context, moment, detail, data = event
    return _EVENT.pack(step.value, context, moment, detail, len(data)) + data


def read_fed(path: Path) -> Iterator[FedRecord]:
    block = path.read_bytes()
    position = 0
    while position < len(block):
        transaction_id, request_id, header, length = _FED.unpack_from(block, position)
        start = position + _FED.size
        position = start + length
        yield FedRecord(
            TransactionId(transaction_id),
            request_id_from(request_id),
            header,
            block[start:position],
        )


def read_events(path: Path, start: int = 0) -> Iterator[Event]:
    """Yield what the file holds from its byte `start` on."""
    block = path.read_bytes()[start:]
    position = 0
    while position < len(block):
        step, context, moment, detail, length = _EVENT.unpack_from(block, position)
        start = position + _EVENT.size
        position = start + length
        yield Event(Step(step), context, moment, detail, block[start:position])


def read_partition(log: LogReader, partition: int, first: int, end: int) -> Iterator[FedRecord]:
    """Yield what a reader finds in the log from the transaction `first` on, up to before `end`."""
    for run in log.read(partition, first, end):
        for index, data in enumerate(run.data):
            yield FedRecord(
                TransactionId(run.first_transaction_id + index),
                request_id_from(run.request_ids[16 * index : 16 * index + 16]),
                int(run.headers[index]),
                bytes(data),
            )


def read_all(log: LogReader, partition: int) -> Iterator[FedRecord]:
    return read_partition(log, partition, 0, log.high_water_mark(partition) + 1)


class Journal:
    """Both files of one client and partition, being written."""

    def __init__(
        self, directory: Path, who: str, partition_id: int, *, keeps_fed: bool = True
    ) -> None:
        """Without `keeps_fed` what is handed over is not written down."""
        self.checksum = 0
        """CRC-32 of everything that was handed over, in order."""
        self._lock = Lock()
        self._events = event_path(directory, who, partition_id).open("wb", BUFFER_BYTES)
        self._fed = None
        if keeps_fed:
            self._fed = fed_path(directory, who, partition_id).open("wb", BUFFER_BYTES)

    def note(self, event: Event) -> None:
        block = encode_event(event)
        with self._lock:
            self._events.write(block)

    def hand_over(self, records: list[FedRecord]) -> None:
        """One call at a time, as the client's callbacks are."""
        if self._fed is not None:
            block = encode_fed(records)
            self.checksum = crc32(block, self.checksum)
            self._fed.write(block)

    def flush(self) -> None:
        with self._lock:
            self._events.flush()

    def close(self) -> None:
        self._events.close()
        if self._fed is not None:
            self._fed.close()
