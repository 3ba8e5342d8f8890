"""The bytes that the Java original printed, as frames and as messages with their field values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from waltz.record import NewRecord, Record, RecordBatch, empty_batch, pack_records, request_id_bytes
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    SessionId,
    TransactionId,
)
from waltz.wire import admin_protocol, client_protocol, storage_protocol
from waltz.wire.admin_protocol import ADMIN_CODEC
from waltz.wire.client_protocol import CLIENT_CODEC, MountState
from waltz.wire.header_columns import HeaderColumns, header_columns
from waltz.wire.message import Codec, Message
from waltz.wire.records import RecordHeader, SessionInfo, StackFrame
from waltz.wire.storage_protocol import STORAGE_CODEC

DIRECTORY = Path(__file__).parent.parent / "golden"

CODECS: Mapping[str, Codec] = {
    "client-server": CLIENT_CODEC,
    "storage": STORAGE_CODEC,
    "admin": ADMIN_CODEC,
}
CODEC_BY_MAGIC: Mapping[int, Codec] = {codec.magic: codec for codec in CODECS.values()}


class GoldenFrame(NamedTuple):
    """A line of `frames.txt`: `frame` None where the original refuses to encode."""

    name: str
    frame: bytes | None
    refusal: str


class Vector(NamedTuple):
    """A line of `codec-vectors.jsonl` as the message that our side makes of its fields."""

    name: str
    codec: Codec
    version: int
    message: Message
    frame: bytes | None


def _golden_frames() -> list[GoldenFrame]:
    found = []
    for line in (DIRECTORY / "frames.txt").read_text().splitlines():
        name, _, value = line.partition(" = ")
        if name.startswith(("V", "S ", "A ", "hello ", "keepalive ")):
            refused = value.startswith("EXC ")
            found.append(
                GoldenFrame(
                    name, None if refused else bytes.fromhex(value), value if refused else ""
                )
            )
    return found


GOLDEN_FRAMES = _golden_frames()
MESSAGE_FRAMES = [
    (golden.name, golden.frame)
    for golden in GOLDEN_FRAMES
    if golden.frame is not None and golden.name.startswith(("V", "S ", "A "))
]
"""The frames that hold a message: no Hello, no keep-alive."""

REFUSED = [golden for golden in GOLDEN_FRAMES if golden.frame is None]

OWN_FRAMES = [
    (
        "S6 note clients",
        bytes.fromhex(
            "53 0006 0000003f 17 0000000000000009 000000000000000d 00000002 00000001"
            "00000007 00000006 6f7264657273 00000000 00000006 31302e303a31"
            "00000006 73686f702032"
        ),
    ),
    (
        "A3 journal request",
        bytes.fromhex(
            "41 0003 0000001d 11 0000000000000007 00000002 0000000000000064 00000000000000c8"
        ),
    ),
    (
        "A3 journal response",
        bytes.fromhex(
            "41 0003 0000001d 12 0000000000000007 00000002 00000000000000c9 00000004 01020304"
        ),
    ),
    (
        "A4 record list",
        bytes.fromhex(
            "41 0004 0000004e 08 0000000000000002 00000002"
            "6400000000000000 01000000 2d000000 00000000"
            "0000000000000064 00000007000000030000000200000005 11223344 00000005 3610a686"
            "68656c6c6f f251c140"
        ),
    ),
    (
        "S1 state request",
        bytes.fromhex("53 0001 00000015 13 0000000000000009 000000000000000a 00000002"),
    ),
    (
        "S1 state response",
        bytes.fromhex(
            "53 0001 0000006b 14 0000000000000009 000000000000000a 00000002"
            "0000000000000008 0000000000000063 0000000000000062 0000000000000064"
            "00112233445566778899aabbccddeeff 01 00 00000002"
            "0000000000000003 0000000000000005 0000000000000032 0000000000000033"
        ),
    ),
    (
        "S1 state response, fresh",
        bytes.fromhex(
            "53 0001 0000004b 14 0000000000000009 000000000000000a 00000002"
            + "ffffffffffffffff" * 4
            + "00112233445566778899aabbccddeeff 01 01 00000000"
        ),
    ),
    (
        "S1 repair",
        bytes.fromhex(
            "53 0001 00000042 15 0000000000000009 000000000000000b 00000002 00000001"
            "0000000000000064 00000007000000030000000200000005 11223344 00000005"
            "68656c6c6f 3610a686"
        ),
    ),
    (
        "S2 append",
        bytes.fromhex(
            "53 0002 00000057 06 0000000000000009 0000000000000004 00000002"
            "6400000000000000 01000000 2d000000 00000000"
            "0000000000000064 00000007000000030000000200000005 11223344 00000005 3610a686"
            "68656c6c6f f251c140 00"
        ),
    ),
    (
        "S2 record list",
        bytes.fromhex(
            "53 0002 00000056 12 0000000000000009 0000000000000009 00000002"
            "6400000000000000 01000000 2d000000 00000000"
            "0000000000000064 00000007000000030000000200000005 11223344 00000005 3610a686"
            "68656c6c6f f251c140"
        ),
    ),
    (
        "S2 record list, empty",
        bytes.fromhex(
            "53 0002 00000025 12 0000000000000009 0000000000000009 00000002"
            "0000000000000000 00000000 00000000"
        ),
    ),
    (
        "S2 repair",
        bytes.fromhex(
            "53 0002 00000056 15 0000000000000009 000000000000000b 00000002"
            "6400000000000000 01000000 2d000000 00000000"
            "0000000000000064 00000007000000030000000200000005 11223344 00000005 3610a686"
            "68656c6c6f f251c140"
        ),
    ),
    (
        "S3 header list",
        bytes.fromhex(
            "53 0003 00000041 10 0000000000000009 0000000000000008 00000002"
            "6400000000000000 01000000 01000000 3f5e822c"
            "07000000 03000000 02000000 05000000 01000000 44332211"
        ),
    ),
    (
        "S3 header list, empty",
        bytes.fromhex(
            "53 0003 00000029 10 0000000000000009 0000000000000008 00000002"
            "0000000000000000 00000000 00000000 554bbbec"
        ),
    ),
    (
        "S5 accept damage",
        bytes.fromhex(
            "53 0005 00000039 16 0000000000000009 000000000000000c 00000002 00000002"
            "0000000000000003 0000000000000005 0000000000000032 0000000000000033"
        ),
    ),
    (
        "A1 access",
        bytes.fromhex("41 0001 00000017 05 0000000000000006 00000002 00000000 00000002 01 00"),
    ),
    (
        "V5 append batch",
        bytes.fromhex(
            "4c 0005 0000005e 40 00000007 00000003 00000002 00000005 02000000"
            "6300000000000000 6400000000000000 44332211 ffffffff 05000000 00000000"
            "86a61036 00000000 0100 0000 0200 0000 0100 0000"
            "01000000 feffffff 03000000 04000000 68656c6c6f"
        ),
    ),
    (
        "V5 append rejected",
        bytes.fromhex(
            "4c 0005 00000045 41 00000007 00000003 00000002 00000005 00000002"
            "00000005 00000001 00000000 0000000000000062 fffffffe"
            "00000006 00000003 00000003 ffffffffffffffff 00000000"
        ),
    ),
    (
        "V5 feed batch",
        bytes.fromhex(
            "4c 0005 0000004a 42 00000002 0000000000000064 03000000 02000000 00"
            "07000000 03000000 02000000 05000000 01000000"
            "08000000 03000000 02000000 01000000 02000000 44332211 00000000 ffffffff"
        ),
    ),
    (
        "V5 feed batch with data",
        bytes.fromhex(
            "4c 0005 00000068 42 00000002 0000000000000064 03000000 02000000 01"
            "07000000 03000000 02000000 05000000 01000000"
            "08000000 03000000 02000000 01000000 02000000 44332211 00000000 ffffffff"
            "05000000 00000000 01000000 86a61036 00000000 8316dc8c 68656c6c6f 78"
        ),
    ),
    (
        "V5 data wanted",
        bytes.fromhex("4c 0005 00000011 43 00000007 00000003 00000002 00000005"),
    ),
    (
        "V5 outcome request",
        bytes.fromhex("4c 0005 00000019 44 00000007 00000003 00000002 00000005 0000000000000063"),
    ),
    (
        "V5 outcome response",
        bytes.fromhex(
            "4c 0005 0000001d 45 00000007 00000003 00000002 00000005 00000000 0000000000000064"
        ),
    ),
    (
        "V5 read request",
        bytes.fromhex(
            "4c 0005 00000021 46 00000007 00000003 00000002 00000005 0000000000000064"
            "000003e8 00010000"
        ),
    ),
    (
        "V5 record block",
        bytes.fromhex(
            "4c 0005 0000008a 47 00000007 00000003 00000002 00000005 0000000000000065 ffffffff"
            "6400000000000000 02000000 55000000 00000000 2d000000"
            "0000000000000064 00000007000000030000000200000005 11223344 00000005 3610a686"
            "68656c6c6f f251c140"
            "0000000000000065 00000007000000030000000200000006 00000000 00000000 00000000"
            "3f191aed"
        ),
    ),
    (
        "V5 record block, failed",
        bytes.fromhex(
            "4c 0005 00000037 47 00000007 00000003 00000002 00000005 0000000000000065"
            "0000000a 6e6f207265706c696361 6400000000000000 00000000 00000000"
        ),
    ),
    (
        "V5 headers request",
        bytes.fromhex(
            "4c 0005 0000001d 48 00000007 00000003 00000002 00000005 0000000000000064 000003e8"
        ),
    ),
    (
        "V5 header block",
        bytes.fromhex(
            "4c 0005 00000065 49 00000007 00000003 00000002 00000005 0000000000000066 ffffffff"
            "6400000000000000 03000000 02000000 bfa8d49a"
            "07000000 03000000 02000000 05000000 01000000"
            "08000000 03000000 02000000 01000000 02000000 44332211 00000000 ffffffff"
        ),
    ),
    (
        "V5 header block, failed",
        bytes.fromhex(
            "4c 0005 0000003b 49 00000007 00000003 00000002 00000005 0000000000000066"
            "0000000a 6e6f207265706c696361 6400000000000000 00000000 00000000 558acb01"
        ),
    ),
]
"""Frames that the original does not know, put together by hand."""


def _request_id(fields: Any) -> RequestId:
    return RequestId(
        ClientId(fields["clientId"]),
        Generation(fields["generation"]),
        PartitionId(fields["partitionId"]),
        fields["seqNum"],
    )


def _data(fields: Any) -> bytes | None:
    return None if fields is None else bytes.fromhex(fields["hex"])


def _records(fields: Any) -> RecordBatch:
    if not fields:
        return empty_batch(TransactionId(0))
    new_records = [
        NewRecord(
            request_id_bytes(_request_id(each["reqId"])),
            each["header"],
            bytes.fromhex(each["data"]["hex"]),
            each["checksum"],
        )
        for each in fields
    ]
    return pack_records(fields[0]["transactionId"], new_records)


def _header(fields: Any) -> RecordHeader | None:
    if fields is None:
        return None
    return RecordHeader(fields["transactionId"], _request_id(fields["reqId"]), fields["header"])


def _headers(fields: Any) -> HeaderColumns:
    without = {"data": {"hex": ""}, "checksum": 0}
    return header_columns(_records([{**each, **without} for each in fields]))


def _record(fields: Any) -> Record | None:
    if fields is None:
        return None
    return Record(
        fields["transactionId"],
        _request_id(fields["reqId"]),
        fields["header"],
        bytes.fromhex(fields["data"]["hex"]),
        fields["checksum"],
    )


def _session_info(fields: Any) -> SessionInfo:
    return SessionInfo(
        SessionId(fields["sessionId"]),
        TransactionId(fields["lowWaterMark"]),
        TransactionId(fields["localLowWaterMark"]),
    )


def _partition_flags(fields: Any) -> tuple[tuple[int, bool], ...]:
    return tuple((int(key), value) for key, value in fields.items())


_STACK = (
    StackFrame("com.example.A", "m", "A.java", 12),
    StackFrame("com.example.B", "n", None, -2),
)
"""The vectors give the size of a stack only; this is the one that was used."""

_CONVERSIONS: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    "reqId": ("request_id", _request_id),
    "clientHighWaterMark": ("client_high_water_mark", int),
    "partitionState": ("state", MountState),
    "writeLockRequest": ("write_locks", tuple),
    "readLockRequest": ("read_locks", tuple),
    "appendLockRequest": ("append_locks", tuple),
    "header": ("header", int),
    "data": ("data", _data),
    "checksum": ("checksum", int),
    "transactionId": ("transaction_id", int),
    "storageConnectivityMap": ("connectivity", lambda fields: tuple(fields.items())),
    "serverPartitionAssignments": ("partition_ids", tuple),
    "serverPartitionHealthStats": ("health", _partition_flags),
    "partitionIds": ("partition_ids", tuple),
    "partitionsIds": ("partition_ids", tuple),
    "result": ("result", bool),
    "sessionId": ("session_id", int),
    "partitionId": ("partition_id", int),
    "seqNum": ("sequence_number", int),
    "usedByOfflineRecovery": ("offline", bool),
    "key": ("cluster_key", UUID),
    "numPartitions": ("partition_count", int),
    "lowWaterMark": ("low_water_mark", int),
    "lastSessionInfo": ("session_info", _session_info),
    "records": ("records", _records),
    "recordHeader": ("header", _header),
    "record": ("record", _record),
    "recordHeaders": ("headers", _headers),
    "maxNumRecords": ("count_max", int),
    "toggled": ("toggled", bool),
    "deleteStorageFiles": ("delete_storage_files", bool),
    "metricsJson": ("metrics_json", str),
    "partitionStatusMap": ("statuses", _partition_flags),
}

_RENAMED_TYPES: Mapping[tuple[str, str], str] = {
    ("client-server", "ServerPartitionsHealthStatRequest"): "ServerPartitionsHealthRequest",
    ("client-server", "ServerPartitionsHealthStatResponse"): "ServerPartitionsHealthResponse",
    ("storage", "AppendRequest"): "AppendRecordsRequest",
    ("admin", "RecordListRequest"): "AdminRecordListRequest",
    ("admin", "RecordListResponse"): "AdminRecordListResponse",
    ("admin", "LastSessionInfoRequest"): "AdminLastSessionInfoRequest",
    ("admin", "LastSessionInfoResponse"): "AdminLastSessionInfoResponse",
}

_RENAMED_FIELDS: Mapping[str, Mapping[str, str]] = {
    "MountRequest": {"sequence_number": "connection_sequence"},
    "PartitionAvailableRequest": {"toggled": "available"},
    "PartitionAssignmentRequest": {"toggled": "assigned"},
    "RecordHeaderListRequest": {"transaction_id": "first_transaction_id"},
    "RecordListRequest": {"transaction_id": "first_transaction_id"},
    "AdminRecordListRequest": {"transaction_id": "first_transaction_id"},
}

_MODULES = {
    "client-server": client_protocol,
    "storage": storage_protocol,
    "admin": admin_protocol,
}


def _exception_fields(kind: str, exception: Any) -> dict[str, object]:
    if kind == "TransactionDataResponse":
        return {"error": exception["message"] if exception else None}
    stack = _STACK[: exception["stackTraceElements"]]
    return {"message": exception["message"], "stack": stack}


def _vector(line: str) -> Vector:
    vector = json.loads(line)
    protocol = vector["proto"]
    name = _RENAMED_TYPES.get((protocol, vector["type"]), vector["type"])
    kind: type[Message] = getattr(_MODULES[protocol], name)
    assert vector["typeId"] == kind.CODE
    values: dict[str, object] = {}
    for key, fields in vector["fields"].items():
        if key == "exception":
            values |= _exception_fields(name, fields)
            continue
        field, convert = _CONVERSIONS[key]
        values[_RENAMED_FIELDS.get(name, {}).get(field, field)] = convert(fields)
    # Every storage message of the original has the flag; only some put it on the wire.
    arguments = [values.pop(place.name) for place in kind.LAYOUT]
    assert values.keys() <= {"offline"}
    return Vector(
        f"{protocol} {vector['version']} {name} {vector.get('note', '')}".strip(),
        CODECS[protocol],
        vector["version"],
        kind(*arguments),
        bytes.fromhex(vector["frame"]) if "frame" in vector else None,
    )


VECTORS = [
    _vector(line)
    for line in (DIRECTORY / "codec-vectors.jsonl").read_text().splitlines()
    if '"proto":"hello"' not in line
]
