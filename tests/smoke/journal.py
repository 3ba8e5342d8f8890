"""What one client did and saw in one partition, in files: its contexts, and what it was handed.

Owns the bytes of both files. A client's process writes them as it goes, from many threads; the
judge reads them once the process has ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

from waltz.record import request_id_bytes, request_id_from
from waltz.sim.judges.history import Fed, Verdict
from waltz.types import TransactionId

_FED: Final = struct.Struct(">q16siI")
_EVENT: Final = struct.Struct(">BIqiI")
_VERDICTS: Final = tuple(Verdict)
BUFFER_BYTES: Final = 256 * 1024


class Step(Enum):
    """What can happen to a context; an ending's detail is its verdict, an attempt's its header."""

    SUBMITTED = 0
    ATTEMPTED = 1
    ENDED = 2


class Event(NamedTuple):
    step: Step
    context: int
    moment: int
    """Nanoseconds of this machine's clock."""
    detail: int = 0
    data: bytes = b""


def verdict_number(verdict: Verdict) -> int:
    return _VERDICTS.index(verdict)


def verdict_of(event: Event) -> Verdict:
    return _VERDICTS[event.detail]


def fed_path(directory: Path, who: str, partition_id: int) -> Path:
    return directory / f"{who}-{partition_id}.fed"


def event_path(directory: Path, who: str, partition_id: int) -> Path:
    return directory / f"{who}-{partition_id}.events"


def encode_fed(records: Iterable[Fed]) -> bytes:
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


def read_fed(path: Path) -> Iterator[Fed]:
    block = path.read_bytes()
    position = 0
    while position < len(block):
        transaction_id, request_id, header, length = _FED.unpack_from(block, position)
        start = position + _FED.size
        position = start + length
        yield Fed(
            TransactionId(transaction_id),
            request_id_from(request_id),
            header,
            block[start:position],
        )


def read_events(path: Path) -> Iterator[Event]:
    block = path.read_bytes()
    position = 0
    while position < len(block):
        step, context, moment, detail, length = _EVENT.unpack_from(block, position)
        start = position + _EVENT.size
        position = start + length
        yield Event(Step(step), context, moment, detail, block[start:position])


class Journal:
    """Both files of one client and partition, being written."""

    def __init__(self, directory: Path, who: str, partition_id: int) -> None:
        self.checksum = 0
        """CRC-32 of everything that was handed over, in order."""
        self.fed_count = 0
        self._lock = Lock()
        self._fed = fed_path(directory, who, partition_id).open("wb", BUFFER_BYTES)
        self._events = event_path(directory, who, partition_id).open("wb", BUFFER_BYTES)

    def note(self, event: Event) -> None:
        block = encode_event(event)
        with self._lock:
            self._events.write(block)

    def hand_over(self, records: list[Fed]) -> None:
        """One call at a time, as the client's callbacks are."""
        block = encode_fed(records)
        self.checksum = crc32(block, self.checksum)
        self.fed_count += len(records)
        self._fed.write(block)

    def close(self) -> None:
        self._fed.close()
        self._events.close()
