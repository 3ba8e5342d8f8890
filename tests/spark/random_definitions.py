"""Derives tables of random definitions in random batches, and compares them with simpler truths.

    python -m tests.spark.random_definitions --definitions 500 --seed 7

Tables of many definitions are taken in by the same batches, so a definition costs a few small jobs.
In many batches a table must be what it is in one, in whatever target, and what plain Python makes
of lists of values; and `verify` must find it equal. Prints one line of JSON; ends with 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import yaml

import waltz
from tests.spark.duck import opened_duck
from tests.spark.proofs import proof_ground
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.definition import PipelineDefinition, TargetKind, parse_definition
from waltz.spark.pipelines.derived import batch_of
from waltz.spark.pipelines.frames import decoded, judged_layouts, read_log
from waltz.spark.pipelines.open_tables import open_tables
from waltz.spark.pipelines.proof import verify
from waltz.spark.pipelines.table_store import Layout
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRANSACTIONS: Final = 60
TABLES_AT_ONCE: Final = 25
LAKES: Final[tuple[TargetKind, ...]] = ("delta", "iceberg")

FIELDS: Final = {
    "a": "bigint",
    "b": "int",
    "s": "string",
    "d": "double",
    "on": "date",
    "at": "timestamp",
    "xs": "array<bigint>",
}

Values = dict[str, Any]
"""A row before it is grouped: columns of the log, fields, and `element`."""


def _of(name: str) -> Callable[[Values], Any]:
    return lambda row: row[name]


def _known(function: Callable[..., Any], *names: str) -> Callable[[Values], Any]:
    def of(row: Values) -> Any:
        given = [row[name] for name in names]
        return None if any(each is None for each in given) else function(*given)

    return of


def _above(bound: float) -> Callable[[Any], bool]:
    """Spark takes NaN for larger than any number."""
    return lambda value: math.isnan(value) or value > bound


Expression = tuple[str, Callable[[Values], Any]]

NUMBERS: Final[list[Expression]] = [
    ("a", _of("a")),
    ("b", _of("b")),
    ("a + b", _known(lambda a, b: a + b, "a", "b")),
    ("pmod(a, 5)", _known(lambda a: a % 5, "a")),
    ("coalesce(b, 0) * 3", lambda row: (row["b"] or 0) * 3),
    ("if(header = 1, a, null)", lambda row: row["a"] if row["header"] == 1 else None),
    ("transaction_id", _of("transaction_id")),
    ("length(s)", _known(len, "s")),
    ("size(xs)", lambda row: None if row["xs"] is None else len(row["xs"])),
]
TEXTS: Final[list[Expression]] = [
    ("s", _of("s")),
    ("upper(s)", _known(str.upper, "s")),
    ("concat(s, ')')", _known(lambda s: f"{s})", "s")),
]
TIMES: Final[list[Expression]] = [
    ("at", _known(lambda at: at.replace("T", " ").removesuffix("Z"), "at")),
    ("on", _of("on")),
    ("cast(at as date)", _known(lambda at: at[:10], "at")),
]
FLOATS: Final[list[Expression]] = [("d", _of("d")), ("d * 2", _known(lambda d: d * 2, "d"))]
TRUTHS: Final[list[Expression]] = [
    ("a > 0", _known(lambda a: a > 0, "a")),
    ("s is null", lambda row: row["s"] is None),
    ("d > 1.5", _known(_above(1.5), "d")),
    ("header = 1", lambda row: row["header"] == 1),
    ("s like 'b%' and a < 3", lambda row: _and(row["s"], row["a"])),
]
ELEMENTS: Final[list[Expression]] = [
    ("element", _of("element")),
    ("element * 2", _known(lambda element: element * 2, "element")),
    ("coalesce(element, a)", lambda r: r["a"] if r["element"] is None else r["element"]),
]
ARRAYS: Final[list[Expression]] = [
    ("xs", _of("xs")),
    ("array(a, cast(b as bigint))", lambda row: [row["a"], row["b"]]),
    ("filter(xs, x -> x > 0)", _known(lambda xs: [x for x in xs if x and x > 0], "xs")),
]


def _and(s: str | None, a: int | None) -> bool | None:
    """What SQL says of `s like 'b%' and a < 3`."""
    both = [None if s is None else s.startswith("b"), None if a is None else a < 3]
    if any(each is False for each in both):
        return False
    return None if any(each is None for each in both) else True


@dataclass(frozen=True)
class RandomTable:
    """A definition as text, and the same as functions."""

    keys: list[Expression]
    measures: list[tuple[str, Expression]]
    where: Expression | None
    each: Expression | None

    def written(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "keys": {f"k{number}": text for number, (text, _) in enumerate(self.keys)},
            "measures": {
                f"m{number}": f"{function}({text})"
                for number, (function, (text, _)) in enumerate(self.measures)
            },
        }
        if self.where is not None:
            found["where"] = self.where[0]
        if self.each is not None:
            found["each"] = self.each[0]
        return found


def random_table(random: Random) -> RandomTable:
    each = random.choice(ARRAYS) if random.random() < 0.4 else None
    numbers = NUMBERS + (ELEMENTS if each else [])
    truths = [*TRUTHS, ("element > 1", _known(lambda e: e > 1, "element"))] if each else TRUTHS
    any_value = [*numbers, *TEXTS, *TIMES, *FLOATS, *truths]
    keys = [
        *(("header", _of("header")), ("partition", _of("partition")), ("1", lambda _: 1)),
        *TEXTS,
        *TIMES,
        *truths,
        *numbers,
    ]
    kinds: dict[str, list[Expression]] = {
        "count": [("*", lambda _: 1), *any_value],
        "count_if": truths,
        "sum": numbers,
        "min": any_value,
        "max": any_value,
        "first": any_value,
        "last": any_value,
    }
    measures = []
    for _ in range(random.randint(0, 4)):
        function = random.choice(list(kinds))
        measures.append((function, random.choice(kinds[function])))
    return RandomTable(
        random.sample(keys, random.randint(1, 2)),
        measures,
        random.choice(truths) if random.random() < 0.4 else None,
        each,
    )


def _stored(value: Any) -> Any:
    """A value as SQLite keeps it: no NaN, and truth as a number."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return int(value) if isinstance(value, bool) else value


def folded(table: RandomTable, log: Sequence[Values]) -> set[tuple[Any, ...]]:
    """The simple truth: all values of a row in a list, in their order."""
    groups: dict[tuple[Any, ...], list[Values]] = {}
    for transaction in log:
        elements = [None] if table.each is None else (table.each[1](transaction) or [])
        for element in elements:
            row = {**transaction, "element": element}
            if table.where is None or table.where[1](row):
                key = tuple(_stored(of(row)) for _, of in table.keys)
                groups.setdefault(key, []).append(row)
    found = set()
    for key, rows in groups.items():
        measures = []
        for function, (_, of) in table.measures:
            values = [_stored(of(row)) for row in rows]
            measures.append(_measured(function, values, [of(row) for row in rows]))
        places = [(row["partition"], row["transaction_id"]) for row in rows]
        found.add((*key, *measures, *places[0], *places[-1]))
    return found


def _measured(function: str, values: list[Any], raw: list[Any]) -> Any:
    known = [each for each in values if each is not None]
    match function:
        case "count":
            return sum(each is not None for each in raw)
        case "count_if":
            return sum(known)
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case _:
            folds: dict[str, Callable[[list[Any]], Any]] = {"sum": sum, "min": min, "max": max}
            return folds[function](known) if known else None


def write_log(cluster: str, random: Random) -> list[Values]:
    """Append transactions, some without data that can be decoded; return the others, in order."""
    written = []
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for _ in range(TRANSACTIONS):
            entry = {
                "a": random.choice([None, *range(-4, 5), 1 << 40]),
                "b": random.choice([None, *range(-3, 4)]),
                "s": random.choice([None, "", "b", "be", "c"]),
                "d": random.choice([None, 0.0, -0.0, 1.25, -7.5, math.nan, math.inf]),
                "on": random.choice([None, "2026-11-01", "1999-12-31"]),
                "at": random.choice([None, "2026-11-01T10:00:00Z", "2026-11-02T00:30:00.25Z"]),
                "xs": random.choice([None, [], [3, -1, 3], [None, 2], [0]]),
            }
            partition, header = random.randrange(2), random.randint(0, 2)
            is_broken = random.random() < 0.1
            data = b"{" if is_broken else json.dumps(entry).encode()
            transaction_id = client.append(partition, data, header=header)
            place = {"partition": partition, "transaction_id": transaction_id, "header": header}
            if not is_broken:
                written.append({**entry, **place})
    return sorted(written, key=lambda row: (row["transaction_id"], row["partition"]))


def random_batches(
    ends: dict[PartitionId, TransactionId], random: Random
) -> Iterator[list[TransactionRange]]:
    """Yield everything in two to five batches, which end anywhere in each partition."""
    count = random.randint(2, 5)
    cuts = {
        each: [0, *sorted(random.randint(0, end) for _ in range(count - 1)), end]
        for each, end in ends.items()
    }
    for number in range(count):
        ranges = [
            TransactionRange(each, TransactionId(cut[number]), TransactionId(cut[number + 1]))
            for each, cut in cuts.items()
            if cut[number] < cut[number + 1]
        ]
        if ranges:
            yield ranges


def _taken_in(
    spark: SparkSession,
    definition: PipelineDefinition,
    layouts: Sequence[Layout],
    key: Any,
    batches: Iterator[list[TransactionRange]],
) -> list[set[tuple[Any, ...]]]:
    """Take in batch after batch; return the rows of each table."""
    assert definition.tables is not None
    with open_tables(definition, create=True) as store:
        store.prepare(key, definition.tables.fingerprint(), layouts)
        for ranges in batches:
            frame = decoded(read_log(spark, definition, ranges), definition.tables)
            with batch_of(frame, definition.tables, layouts, ranges) as batch:
                store.add(batch)
        return [set(store.rows(each)) for each in layouts]


def digest_of(rows: Iterable[tuple[Any, ...]]) -> str:
    """Return what two tables share if they have the same rows, of the same types."""
    return sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


def unequal_files(database: Path, lakes: Sequence[Path], layouts: Sequence[Layout]) -> list[str]:
    """Compare each table of a database of SQLite with the files of other formats, as DuckDB reads
    them; return what differs."""
    faults = []
    with closing(sqlite3.connect(database)) as tables, opened_duck() as duck:
        for layout in layouts:
            name, columns = layout.definition.name, [each.name for each in layout.columns]
            names = ", ".join(f'"{each}"' for each in columns)
            wanted = digest_of(tables.execute(f'SELECT {names} FROM "{name}"'))
            faults += [
                f"table {name} in {lake} is not that of {database}"
                for lake in lakes
                if digest_of(duck.rows(lake / name, columns)) != wanted
            ]
    return faults


QUICK: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""Every definition is another query of a few rows: compiling it takes longer than running it."""


@contextmanager
def quick_queries(spark: SparkSession) -> Iterator[None]:
    """Let queries of a few rows be planned and run without much ado."""
    before = {key: spark.conf.get(key) or "" for key in QUICK}
    for key, value in QUICK.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


def faults_of_definitions(
    spark: SparkSession, cluster: str, directory: Path, count: int, seed: int
) -> list[str]:
    """Try `count` definitions and return what differs."""
    with quick_queries(spark):
        return _faults_of_definitions(spark, cluster, directory, count, seed)


def _faults_of_definitions(
    spark: SparkSession, cluster: str, directory: Path, count: int, seed: int
) -> list[str]:
    random = Random(seed)
    log = write_log(cluster, random)
    with waltz.open_reader(cluster) as reader:
        key = reader.cluster_key
        ends = {
            PartitionId(each): TransactionId(reader.high_water_mark(PartitionId(each)) + 1)
            for each in range(reader.partition_count)
        }
    whole = [TransactionRange(each, TransactionId(0), end) for each, end in ends.items()]
    faults = []
    for first in range(0, count, TABLES_AT_ONCE):
        tables = [random_table(random) for _ in range(min(TABLES_AT_ONCE, count - first))]
        text = yaml.safe_dump(
            {
                "pipeline": "tables",
                "cluster": cluster,
                "target": f"batches-{first}.db",
                "decode": {"fields": FIELDS, "undecodable": "quarantine"},
                "tables": {f"t{number}": each.written() for number, each in enumerate(tables)},
            },
            sort_keys=False,
        )
        definition = parse_definition(text, directory=directory)
        assert definition.tables is not None
        layouts = judged_layouts(spark, definition.tables)
        batches = list(random_batches(ends, random))
        apart = _taken_in(spark, definition, layouts, key, iter(batches))
        delta, iceberg = (
            replace(definition, target=directory / f"{kind}-{first}", target_kind=kind, buckets=2)
            for kind in LAKES
        )
        in_delta, in_iceberg = (
            _taken_in(spark, each, layouts, key, iter(batches)) for each in (delta, iceberg)
        )
        at_once = replace(definition, target=directory / f"one-{first}.db")
        together = _taken_in(spark, at_once, layouts, key, iter([whole]))
        for number, table in enumerate(tables):
            expected = folded(table, log)
            for name, found in (
                ("batches", apart[number]),
                ("one batch", together[number]),
                ("batches of a Delta table", in_delta[number]),
                ("batches of an Iceberg table", in_iceberg[number]),
            ):
                if found != expected:
                    faults.append(
                        f"{table.written()} in {name}: {sorted(map(str, found - expected))[:2]}"
                        f" instead of {sorted(map(str, expected - found))[:2]}"
                    )
        faults += unequal_files(definition.target, (delta.target, iceberg.target), layouts)
        for each in (definition, delta, iceberg):
            faults += map(str, verify(spark, LogAccess(cluster), each).differences)
        print(f"{first + len(tables)} definitions, {len(faults)} differences", file=sys.stderr)
    return faults


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.spark.random_definitions")
    arguments.add_argument("--definitions", type=int, default=500)
    arguments.add_argument("--seed", type=int, default=7)
    given = arguments.parse_args()
    with proof_ground("random definitions") as ground:
        began = time.monotonic()
        faults = faults_of_definitions(*ground, given.definitions, given.seed)
    for fault in faults:
        print(fault, file=sys.stderr)
    seconds = round(time.monotonic() - began)
    print(
        json.dumps(
            {"definitions": given.definitions, "seed": given.seed, "different": len(faults)}
            | {"seconds": seconds}
        )
    )
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
