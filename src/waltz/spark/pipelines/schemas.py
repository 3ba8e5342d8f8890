"""Schemas of data, chosen by the header of a transaction: JSON, MessagePack, Avro, Protobuf.

A schema is a value that has the whole content of its file, so that tasks need no file, and a
changed file is a changed definition. JSON is Spark's work (`frames.py`); other data is decoded
here, row by row, into the fields of the definition. Data is somebody else's: whatever it is,
decoding ends with values or with one line that says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from io import BytesIO
from math import ceil, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

from waltz.envelope import payload
from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_DEFINITION

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from pyspark.sql.types import StructType

Format = Literal["json", "msgpack", "avro", "protobuf"]
FORMATS: Final[tuple[Format, ...]] = ("json", "msgpack", "avro", "protobuf")
PLAIN_FORMATS: Final[tuple[Format, ...]] = ("json", "msgpack")
"""Formats that need no file."""

OTHERS: Final = "others"
"""The key of the schema for headers that are not named."""

HEADER_MIN: Final = -(2**31)
HEADER_MAX: Final = 2**31 - 1
SCHEMAS_MAX: Final = 1_000
"""Schemas of one definition; more are refused."""

SCHEMA_BYTES_MAX: Final = 4 * 1024 * 1024
"""The size of a schema's file; a larger one is refused."""

CAUSE_CHARACTERS_MAX: Final = 200
"""Characters of the reason why data cannot be decoded; the rest is left out."""

ROWS_AT_ONCE: Final = 1_000
"""Transactions whose values are held as Python objects at once."""

DECIMAL: Final = "waltz-decimal"
"""The logical type under which decimals in bytes are read, with a bound on these bytes."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The form of data.

    content  the schema's file; empty for formats that need none.
    message  the full name of the Protobuf message.
    """

    format: Format
    content: bytes = b""
    message: str = ""

    def fingerprint(self) -> list[str]:
        """Return what two schemas share if they decode alike."""
        return [self.format, sha256(self.content).hexdigest(), self.message]


Schemas = tuple[tuple[int | None, Schema], ...]
"""A schema for each header; None: for all headers that have none of their own."""

JSON_ONLY: Final[Schemas] = ((None, Schema("json")),)


def parse_schemas(given: Mapping[Any, object], directory: Path) -> Schemas:
    """Return the schemas under the key `schemas`, whose files are relative to `directory`.

    Raises ConfigurationError: no header, an unknown format, a file that cannot be read.
    """
    if not given:
        raise _mistake("decode: schemas is empty; expected a header and a format for each")
    if len(given) > SCHEMAS_MAX:
        raise _mistake(f"decode: schemas has {len(given)} headers; expected at most {SCHEMAS_MAX}")
    found = []
    for header, form in given.items():
        if header == OTHERS:
            key = None
        elif type(header) is int and HEADER_MIN <= header <= HEADER_MAX:
            key = header
        else:
            raise _mistake(
                f"decode: schemas has the header {header!r:.80}; expected a number of 32 bits, or"
                f" {OTHERS} for headers that are not named"
            )
        found.append((key, _schema(header, form, directory)))
    return tuple(sorted(found, key=lambda each: (each[0] is None, each[0] or 0)))


def _schema(header: object, form: object, directory: Path) -> Schema:
    where = f"decode: schemas: {header}"
    if form in PLAIN_FORMATS:
        return Schema("json" if form == "json" else "msgpack")
    keys = set(form) if isinstance(form, dict) else set()
    if keys == {"avro"} or keys == {"protobuf", "message"}:
        assert isinstance(form, dict)
        kind: Format = "avro" if "avro" in keys else "protobuf"
        content = _content(where, directory / str(form[kind]))
        schema = Schema(kind, content, str(form.get("message", "")))
        decoder_of(schema, where)
        return schema
    raise _mistake(
        f"{where} is {form!r:.80}; expected json, msgpack, {{avro: FILE}} or {{protobuf: FILE,"
        " message: NAME}"
    )


def _content(where: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise _mistake(f"{where}: cannot read {path}: {error.strerror}") from error
    if len(content) > SCHEMA_BYTES_MAX:
        raise _mistake(f"{where}: {path} has more than {SCHEMA_BYTES_MAX:,} bytes")
    return content


def decoder_of(schema: Schema, where: str = "decode") -> Callable[[bytes], Any]:
    """Return the function that decodes data of `schema`, for which it raises whatever the format's
    library does.

    Raises ConfigurationError: the schema is none, is not supported, or the library is missing.
    """
    makers: dict[Format, Callable[[Schema, str], Callable[[bytes], Any]]] = {
        "msgpack": _msgpack,
        "avro": _avro,
        "protobuf": _protobuf,
    }
    try:
        return makers[schema.format](schema, where)
    except ModuleNotFoundError as error:
        raise _mistake(
            f"{where}: {error.name} is missing: run `pip install '.[{schema.format}]'` in a"
            " checkout of Waltz, on every machine that runs tasks"
        ) from error


def field_names(schemas: Schemas) -> frozenset[str] | None:
    """Return the names of all fields that data can have; None: data in JSON or MessagePack can have
    any."""
    names: set[str] = set()
    for _, schema in schemas:
        if schema.format in PLAIN_FORMATS:
            return None
        if schema.format == "avro":
            names.update(each["name"] for each in json.loads(schema.content)["fields"])
        else:
            names.update(_message_type(schema)().DESCRIPTOR.fields_by_name)
    return frozenset(names)


def _msgpack(_: Schema, __: str) -> Callable[[bytes], Any]:
    from waltz import MsgpackSerializer

    return MsgpackSerializer().deserialize


def _avro(schema: Schema, where: str) -> Callable[[bytes], Any]:
    import fastavro
    from fastavro.read import LOGICAL_READERS

    try:
        plain = json.loads(schema.content)
        parsed = fastavro.parse_schema(plain)
        _AvroCheck({}).size(plain, "", ())
        parsed = fastavro.parse_schema(_bounded_decimals(plain))
    except ConfigurationError as error:
        raise _mistake(f"{where}: {error}") from error
    except Exception as error:  # whatever the library says of a schema that is none
        raise _mistake(f"{where}: not an Avro schema: {_line(error)}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise _mistake(f"{where}: the Avro schema is no record; expected one with fields")
    LOGICAL_READERS[f"bytes-{DECIMAL}"] = _decimal

    def decode(data: bytes) -> Any:
        stream = BytesIO(data)
        try:
            found = fastavro.schemaless_reader(stream, parsed, None)
        except EOFError as error:
            raise ValueError("the data ends within a value") from error
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes are left over")
        return found

    return decode


def _bounded_decimals(node: Any) -> Any:
    """Return an Avro schema in which decimals in bytes have a logical type of ours."""
    if isinstance(node, list):
        return [_bounded_decimals(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {
        key: _bounded_decimals(value) if key in ("type", "items", "values", "fields") else value
        for key, value in node.items()
        if key != "default"  # only a reader with a schema of its own uses defaults
    }
    if node.get("type") == "bytes" and node.get("logicalType") == "decimal":
        found["logicalType"] = DECIMAL
    return found


def _decimal(data: bytes, writer: Any = None, _: Any = None) -> Decimal:
    """Return a decimal. Raises ValueError: more digits than its type has, which are not computed,
    since that takes time by the square of their number."""
    precision, scale = writer["precision"], writer.get("scale", 0)
    if len(data) > ceil(precision * log2(10) / 8) + 1:
        raise ValueError(f"a decimal of {precision} digits has {len(data)} bytes")
    number = int.from_bytes(data, "big", signed=True)
    digits = tuple(map(int, str(abs(number))))
    if len(digits) > precision:
        raise ValueError(f"a decimal of {precision} digits has {len(digits)}")
    return Decimal((int(number < 0), digits, -scale))


@dataclass
class _AvroCheck:
    """A check that refuses what would let a few bytes of data become arbitrarily many values, or
    calls as deep as the data is long."""

    sizes: dict[str, int]
    """The fewest bytes of each named type."""

    def size(self, node: Any, space: str, within: tuple[str, ...]) -> int:
        """Return the fewest bytes that a value has. Raises ConfigurationError."""
        if isinstance(node, list):
            return 1 + min(self.size(each, space, within) for each in node)
        if isinstance(node, str):
            return self._named(node, space, within)
        kind = node["type"]
        if kind in ("array", "map"):
            smallest = self.size(node["items" if kind == "array" else "values"], space, within)
            if kind == "array" and smallest == 0:
                raise ConfigurationError(
                    "an array has items of no bytes, of which data could state any number"
                )
            return 1
        if kind in ("record", "error", "enum", "fixed"):
            name, inner = _full_name(node, space)
            if kind in ("enum", "fixed"):
                self.sizes[name] = 1 if kind == "enum" else int(node["size"])
                return self.sizes[name]
            fields = (self.size(each["type"], inner, (*within, name)) for each in node["fields"])
            self.sizes[name] = sum(fields)
            return self.sizes[name]
        return self.size(kind, space, within)

    def _named(self, name: str, space: str, within: tuple[str, ...]) -> int:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full = name if "." in name or not space else f"{space}.{name}"
        for each in (full, name):
            if each in within:
                raise ConfigurationError(f"{each} contains itself; expected a type that does not")
            if each in self.sizes:
                return self.sizes[each]
        raise ConfigurationError(f"the type {name} is defined nowhere")


_PRIMITIVES: Final = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}
"""The fewest bytes of Avro's own types."""


def _full_name(node: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name of a type, and the namespace of the names in it."""
    name = str(node["name"])
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = str(node.get("namespace", space))
    return (f"{inner}.{name}" if inner else name), inner


def _message_type(schema: Schema) -> type[Message]:
    """Return the class of a schema's message. Raises KeyError: its file has no such message; and
    whatever the library does of a file that is no set of descriptors."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(schema.content).file:
        pool.AddSerializedFile(each.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(schema.message))


def _protobuf(schema: Schema, where: str) -> Callable[[bytes], Any]:
    try:
        kind = _message_type(schema)
    except KeyError as error:
        raise _mistake(f"{where}: no message {schema.message!r:.80} in the file") from error
    except ModuleNotFoundError:
        raise
    except Exception as error:  # whatever the library says of a file that is none
        raise _mistake(
            f"{where}: not a set of descriptors: {_line(error)}; expected what `protoc"
            " --include_imports --descriptor_set_out=FILE` writes"
        ) from error

    def decode(data: bytes) -> Any:
        found = kind.FromString(data)
        if not found.IsInitialized():
            raise ValueError("a required field is missing")
        return found

    return decode


@dataclass(frozen=True)
class Decoded:
    """A task: yields rows of the log with the values of their data, or the cause if there are
    none.

    schemas  those that are not JSON.
    fields   the fields of the definition, as Spark's types.
    json     headers whose data is left to Spark; None among them: all others.
    """

    schemas: Schemas
    fields: StructType
    json: frozenset[int | None]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        kinds = to_arrow_schema(self.fields, timezone="UTC")
        struct = pa.struct(list(kinds))
        decoders = {header: decoder_of(schema) for header, schema in self.schemas}
        formats = {header: schema.format for header, schema in self.schemas}

        def value(header: int, data: bytes | None) -> Any:
            key = header if header in decoders or header in self.json else None
            if key in self.json:
                return None
            if key not in decoders:
                raise ValueError(f"no schema for header {header}")
            try:
                return shaped(decoders[key](payload(data or b"")), struct, "")
            except Exception as error:
                raise ValueError(f"not {formats[key]}: {_line(error)}") from error

        for whole in batches:
            for first in range(0, len(whole), ROWS_AT_ONCE):
                batch = whole.slice(first, ROWS_AT_ONCE)
                columns = (batch.column(name).to_pylist() for name in ("header", "data"))
                given = list(zip(*columns, strict=True))
                values, causes = _values(given, value, struct)
                arrays = [*batch.columns, values, pa.array(causes, pa.string())]
                names = [*batch.schema.names, BODY, CAUSE]
                yield pa.RecordBatch.from_arrays(arrays, names)


BODY: Final = "waltz_values"
"""The column with the values of a row, a structure of the definition's fields."""

CAUSE: Final = "waltz_cause"
"""The column with the reason why data cannot be decoded; null in all other rows."""


def _values(
    given: list[tuple[int, bytes | None]],
    value: Callable[[int, bytes | None], Any],
    kind: Any,
) -> tuple[Any, list[str | None]]:
    """Return an array of the values, and why there is none, row by row."""
    import pyarrow as pa

    found: list[Any] = []
    causes: list[str | None] = []
    for header, data in given:
        try:
            found.append(value(header, data))
            causes.append(None)
        except ValueError as error:
            found.append(None)
            causes.append(_line(error))
    try:
        return pa.array(found, kind), causes
    except Exception:  # noqa: S110 - a number that does not fit: looked at one by one, as below
        pass
    for row, each in enumerate(found):
        try:
            pa.array([each], kind)
        except Exception as error:  # whatever Arrow raises
            found[row], causes[row] = None, _line(error)
    return pa.array(found, kind), causes


def shaped(value: Any, kind: Any, path: str) -> Any:
    """Return what Arrow takes for `kind`. Raises ValueError: `value` is something else."""
    import pyarrow as pa

    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        members = _members(value, kind, path)
        return {
            each.name: shaped(members.get(each.name), each.type, f"{path}.{each.name}".lstrip("."))
            for each in kind
        }
    if types.is_list(kind) and isinstance(value, list | tuple):
        return [shaped(each, kind.value_type, f"{path}[{n}]") for n, each in enumerate(value)]
    if types.is_map(kind) and isinstance(value, Mapping):
        return [
            (shaped(key, kind.key_type, f"{path} key"), shaped(each, kind.item_type, f"{path}[]"))
            for key, each in value.items()
        ]
    for is_kind, python in (
        (types.is_boolean, bool),
        (types.is_integer, int),
        (types.is_floating, (float, int)),
        (types.is_decimal, (Decimal, int)),
        (types.is_string, (str, UUID)),
        (types.is_binary, bytes),
        (types.is_timestamp, datetime),
        (types.is_date, date),
    ):
        if is_kind(kind) and isinstance(value, python):
            if isinstance(value, bool) and python is not bool:
                break
            if isinstance(value, datetime) and python is date:
                break
            return str(value) if isinstance(value, UUID) else value
    raise ValueError(f"{path or 'the data'} is {_name(value)}; expected {kind}")


def _members(value: Any, kind: Any, path: str) -> Mapping[Any, Any]:
    """Return the values of a structure by name. Raises ValueError: `value` has none."""
    if isinstance(value, Mapping):
        return value
    if hasattr(value, "DESCRIPTOR"):
        return {
            each.name: _member(value, each.name, each.type)
            for each in kind
            if each.name in value.DESCRIPTOR.fields_by_name
        }
    raise ValueError(f"{path or 'the data'} is {_name(value)}; expected named values")


def _member(message: Message, name: str, kind: Any) -> Any:
    """Return the field of a Protobuf message: None if it can be absent and is."""
    import pyarrow as pa

    field = message.DESCRIPTOR.fields_by_name[name]
    found = getattr(message, name)
    if field.is_repeated:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            inner = entry.fields_by_name["value"]
            item = kind.item_type if pa.types.is_map(kind) else kind
            return {key: _single(inner, found[key], item) for key in found}
        item = kind.value_type if pa.types.is_list(kind) else kind
        return [_single(field, each, item) for each in found]
    if field.has_presence and not message.HasField(name):
        return None
    return _single(field, found, kind)


def _single(field: Any, value: Any, kind: Any) -> Any:
    """Return one value of a Protobuf field: an enumeration's name where a text is expected, a time
    where one is."""
    import pyarrow as pa

    if field.enum_type is not None and pa.types.is_string(kind):
        name = field.enum_type.values_by_number.get(value)
        if name is None:
            raise ValueError(f"{field.name} is {value}, which {field.enum_type.name} does not name")
        return name.name
    if (
        field.message_type is not None
        and field.message_type.full_name == "google.protobuf.Timestamp"
        and pa.types.is_timestamp(kind)
    ):
        if not 0 <= value.nanos < 1_000_000_000:
            raise ValueError(f"{field.name} has {value.nanos} nanoseconds")
        whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value.seconds)
        return whole + timedelta(microseconds=value.nanos // 1000)
    return value


def _name(value: Any) -> str:
    return (
        f"{type(value).__name__} {value!r:.40}" if isinstance(value, int) else type(value).__name__
    )


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:CAUSE_CHARACTERS_MAX]


def _mistake(text: str) -> ConfigurationError:
    return ConfigurationError(f"{INVALID_DEFINITION} {text}")
