"""Decodes data: the column `data` in the type that a schema gives it, and the handling of data that
cannot be decoded.

Pure: Arrow record batches in and out. The option `serializer` sets how data is decoded; the schema
of the read, into what; the option `undecodable`, what happens to other data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from waltz import JsonSerializer, MsgpackSerializer, StringSerializer
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.codes import UNDECODABLE, UNKNOWN_COLUMN
from waltz.spark.log_columns import KINDS, QUARANTINE
from waltz.spark.schema import arrow_schema

SERIALIZERS: Final[dict[str, Callable[[], Any]]] = {
    "string": StringSerializer,
    "json": JsonSerializer,
    "msgpack": MsgpackSerializer,
}


@dataclass(frozen=True)
class RowDecoding:
    """Turns the rows of a read into those of `schema`, an Arrow schema.

    raw  the Arrow schema of the input: binary data, and the columns that an error names.
    """

    schema: Any
    raw: Any
    serializer: str | None
    undecodable: str

    @classmethod
    def of(cls, schema: StructType, serializer: str | None, undecodable: str) -> RowDecoding:
        """Return the decoding of a read. Raises ConfigurationError: columns that the log does not
        have, or that do not fit the options."""
        if serializer is None:
            plain = arrow_schema(schema)
            return cls(plain, plain, None, undecodable)
        kinds = {field.name: field.dataType for field in schema.fields}
        if undecodable == "quarantine" and kinds.get(QUARANTINE) != BinaryType():
            raise ConfigurationError(
                f"{UNKNOWN_COLUMN} undecodable=quarantine needs a column {QUARANTINE} binary in the"
                " schema"
            )
        data = kinds.get("data", StringType())
        if serializer == "string" and data != StringType():
            raise ConfigurationError(
                f"{UNKNOWN_COLUMN} column data is {data.simpleString()}; serializer=string makes it"
                " a string"
            )
        names = [name for name in kinds if name != QUARANTINE or undecodable != "quarantine"]
        needed = dict.fromkeys((*names, "partition", "transaction_id", "data"))
        raw = StructType(
            [
                StructField(name, BinaryType() if name == "data" else kinds[name])
                if name in kinds
                else StructField(name, KINDS[name])
                for name in needed
            ]
        )
        try:
            found = to_arrow_schema(schema, timezone="UTC")
        except Exception as error:  # whatever error Spark has for a type without an Arrow form
            raise ConfigurationError(f"{UNKNOWN_COLUMN} {error}") from error
        return cls(found, arrow_schema(raw), serializer, undecodable)

    def apply(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield `batches`, of the schema `raw`, decoded. Raises CorruptionError: one is not."""
        if self.serializer is None:
            yield from batches
            return
        decode = SERIALIZERS[self.serializer]().deserialize
        for batch in batches:
            yield self._decoded(batch, decode)

    def _decoded(self, batch: Any, decode: Callable[[bytes], Any]) -> Any:
        columns = {name: batch.column(name) for name in batch.schema.names}
        if "data" in self.schema.names:
            kind = self.schema.field("data").type
            decoded, bad = _values(batch.column("data").to_pylist(), decode, kind)
            if bad and self.undecodable == "fail":
                row, reason = next(iter(bad.items()))
                raise CorruptionError(
                    f"{UNDECODABLE} partition {columns['partition'][row]}, transaction"
                    f" {columns['transaction_id'][row]}: data is not {self.serializer} of"
                    f" {kind}: {reason}"
                )
            if QUARANTINE in self.schema.names:
                kept = [None] * len(batch)
                for row in bad:
                    kept[row] = columns["data"][row].as_py()
                columns[QUARANTINE] = pa.array(kept, pa.binary())
            columns["data"] = decoded
        arrays = [columns[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def decoded(decoding: RowDecoding | None, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches`, decoded if there is a decoding."""
    return batches if decoding is None else decoding.apply(batches)


def _values(
    data: list[bytes], decode: Callable[[bytes], Any], kind: Any
) -> tuple[Any, dict[int, str]]:
    """Return the array of the decoded values, and the errors of values that cannot be decoded, by
    row."""
    try:
        return pa.array([decode(each) for each in data], kind), {}
    except Exception:  # noqa: S110 - looked at one by one, as below
        pass
    values: list[Any] = []
    bad: dict[int, str] = {}
    for row, each in enumerate(data):
        try:
            value = decode(each)
            pa.array([value], kind)
        except Exception as error:  # whatever a serializer or Arrow raises
            bad[row] = f"{error}"
            value = None
        values.append(value)
    return pa.array(values, kind), bad
