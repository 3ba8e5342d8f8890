"""The formats on the hot paths: records, frames."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from waltz.bench.calibration import Calibration, timed
from waltz.record import NewRecord, pack_records, request_id_bytes, scan_records
from waltz.types import ClientId, Generation, PartitionId, RequestId, SessionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC, AppendRequest, FeedData
from waltz.wire.storage_protocol import STORAGE_CODEC, AppendRecordsRequest

RECORDS = 1000
DATA = bytes(128)
REQUEST_ID = RequestId(ClientId(1), Generation(2), PartitionId(3), 4)


def measure(calibration: Calibration) -> Iterator[str]:
    """Yield a line per format: time for one record, and its ratio to one pack and CRC."""

    def line(name: str, seconds: float, records: int) -> str:
        each = seconds / records
        return f"{name}: {each * 1e9:.0f} ns each, {each / calibration.pack_seconds:.1f} x pack+crc"

    record = NewRecord(request_id_bytes(REQUEST_ID), 5, DATA, crc32(DATA))
    batch = pack_records(TransactionId(0), [record] * RECORDS)
    new = [record] * RECORDS
    yield line("pack record", timed(lambda: pack_records(TransactionId(0), new), 10), RECORDS)
    yield line(
        "scan record", timed(lambda: scan_records(batch.block, TransactionId(0)), 10), RECORDS
    )
    append = AppendRequest(REQUEST_ID, TransactionId(9), (1,), (2,), (), 5, DATA, crc32(DATA))
    feed = FeedData(REQUEST_ID, TransactionId(10), 5)
    for name, message in (("append request", append), ("feed data", feed)):
        frame = CLIENT_CODEC.encode(message, 4)
        body = frame[7:]
        encode = timed(lambda message=message: CLIENT_CODEC.encode(message, 4), 2000)  # type: ignore[misc]
        decode = timed(lambda body=body: CLIENT_CODEC.decode(body, 4), 2000)  # type: ignore[misc]
        yield line(f"encode {name}", encode, 1)
        yield line(f"decode {name}", decode, 1)
    records = AppendRecordsRequest(SessionId(1), 2, PartitionId(3), batch, False)
    body = STORAGE_CODEC.encode(records, 0)[7:]
    yield line(
        "encode storage append", timed(lambda: STORAGE_CODEC.encode(records, 0), 10), RECORDS
    )
    yield line("decode storage append", timed(lambda: STORAGE_CODEC.decode(body, 0), 10), RECORDS)
