"""Messages with arbitrary values, derived from the declarations that the codec walks."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import strategies as st

from waltz.record import NewRecord, RecordBatch, empty_batch, pack_records
from waltz.types import RequestId, TransactionId
from waltz.wire.client_protocol import MountState, ReadyFlag
from waltz.wire.columns import (
    AppendColumns,
    AppendColumnsField,
    Bodies,
    FeedColumns,
    FeedColumnsField,
    RecordBlockField,
)
from waltz.wire.fields import (
    AnyField,
    Blob,
    Boolean,
    Enumeration,
    LenientText,
    ListOf,
    NullableText,
    Number,
    Numbers,
    Optional,
    Pair,
    RequestIdentity,
    Structure,
    Text,
    UniqueId,
)
from waltz.wire.header_columns import HeaderColumnsField, HeaderRows, header_columns
from waltz.wire.lifecycle_protocol import FeatureSet, MagicBytes
from waltz.wire.message import Message
from waltz.wire.records import Records

RANGES = {
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "CRC-32": (0, 2**32 - 1),
}

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(*RANGES["int"])
NEW_RECORDS = st.builds(
    NewRecord,
    st.binary(min_size=16, max_size=16),
    INTS,
    st.binary(max_size=50),
    st.integers(*RANGES["CRC-32"]),
)


@st.composite
def batches(draw: st.DrawFn, *, checked: bool = False) -> RecordBatch:
    """Batches of any length; the empty one starts at 0, as the decoder's does. With `checked` the
    checksums are right and the IDs are those of transactions."""
    records = draw(st.lists(NEW_RECORDS, max_size=8))
    if not records:
        return empty_batch(TransactionId(0))
    first = draw(st.integers(0 if checked else -(2**63), 2**63 - 1 - len(records)))
    if checked:
        records = [each._replace(checksum=crc32(each.data)) for each in records]
    return pack_records(TransactionId(first), records)


def bodies(data: list[bytes]) -> Bodies:
    return Bodies(data, np.array([crc32(each) for each in data], np.uint32))


@st.composite
def append_columns(draw: st.DrawFn) -> AppendColumns:
    count = draw(st.integers(1, 5))
    several: dict[str, Any] = {"min_size": count, "max_size": count}
    counts = draw(st.lists(st.tuples(*[st.integers(0, 3)] * 3), **several))
    locks = sum(map(sum, counts))
    return AppendColumns(
        np.array(draw(st.lists(st.integers(-1, 2**63 - 1), **several)), np.int64),
        np.array(draw(st.lists(INTS, **several)), np.int32),
        np.array(counts, np.uint16),
        np.array(draw(st.lists(INTS, min_size=locks, max_size=locks)), np.int32),
        bodies(draw(st.lists(st.binary(max_size=50), **several))),
    )


@st.composite
def feed_columns(draw: st.DrawFn) -> FeedColumns:
    numbers = st.tuples(INTS, INTS, INTS, st.integers(-(2**31), 2**31 - 5), st.integers(1, 4))
    runs = draw(st.lists(numbers, min_size=1, max_size=4))
    count = sum(run[4] for run in runs)
    several: dict[str, Any] = {"min_size": count, "max_size": count}
    data = draw(st.none() | st.lists(st.binary(max_size=50), **several))
    return FeedColumns(
        np.array(runs, np.int32),
        np.array(draw(st.lists(INTS, **several)), np.int32),
        None if data is None else bodies(data),
    )


def values(field: AnyField) -> st.SearchStrategy[Any]:  # noqa: C901
    """What a field can hold and a reader gives back unchanged."""
    match field:
        case Number():
            return st.integers(*RANGES[field.name])
        case Boolean():
            return st.booleans()
        case ReadyFlag():
            return st.sampled_from([MountState.READY, MountState.NOT_READY])
        case Enumeration():
            return st.sampled_from(field._kind)
        case UniqueId():
            return st.uuids()
        case RequestIdentity():
            return st.builds(RequestId, INTS, INTS, INTS, INTS)
        case Blob():
            return st.binary(max_size=50)
        case Text() | LenientText():
            return TEXTS
        case NullableText():
            return st.none() | TEXTS
        case Optional():
            return st.none() | values(field._field)
        case Numbers():
            bound = 2 ** (field._element_size * 8 - 1)
            return st.lists(st.integers(-bound, bound - 1), max_size=5).map(tuple)
        case ListOf():
            return st.lists(values(field._element), max_size=3).map(tuple)
        case Pair():
            return st.tuples(values(field._first), values(field._second))
        case Structure():
            return st.builds(field._kind, *map(values, field.fields.values()))
        case MagicBytes():
            return st.just(b"WLTZ")
        case FeatureSet():
            return st.frozensets(st.integers(0, 80), max_size=5)
        case Records() | RecordBlockField():
            return batches(checked=isinstance(field, RecordBlockField))
        case HeaderRows() | HeaderColumnsField():
            return batches(checked=True).map(header_columns)
        case AppendColumnsField():
            return append_columns()
        case FeedColumnsField():
            return feed_columns()
        case _:
            raise AssertionError(f"no strategy for {field!r}")


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], version: int) -> Message:
    """Messages that `version` can express."""
    drawn: dict[str, Any] = {}
    for place in kind.LAYOUT:
        condition = place.condition
        field = place.field_in(version)
        if condition and (drawn[condition.name] is not None) != condition.given:
            drawn[place.name] = condition.absent
        elif field is None:
            drawn[place.name] = place.absent
        elif place.checksum_of is not None:
            drawn[place.name] = crc32(drawn[place.checksum_of])
        else:
            drawn[place.name] = draw(values(field))
    return kind(*drawn.values())
