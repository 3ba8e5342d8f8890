"""The league on Spark as a section of the page, printed from the measured figures only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

WORKS: Final = ("batch", "stream", "sink")
REFERENCE: Final = "Kafka"
"""The system that Waltz is told as a multiple of."""

WARMING_ROUNDS: Final = 3
"""Rounds at the beginning, and as many at the end, that are told apart."""

HEAD = """\
## On Spark

The same rows in each system, read and written by Spark, all processes on one machine. Printed by
`make league-spark` from `bench/spark_league.json`; nobody types in it. A *batch* and a *stream*
read all rows and compute a digest of them, which is compared; a *sink* takes them from one data
frame of Parquet files, as a batch, and is counted. The systems take turns, each round in another
order. Waltz and Kafka have three replicas and four partitions, and are read with all their columns;
Parquet and Delta are files that Spark reads itself, without a server.

"Per core-second" is per second of processor time of all processes together: Spark's Java, its
Python workers, the driver, and the servers. The order is that of this column, which has the round
in the middle.
"""


def spark_table(value: Mapping[str, Any]) -> str:
    """Return the section. `value` is the output of `python -m bench.spark_league --json`."""
    return "\n".join(_lines(value)).rstrip() + "\n"


def _lines(value: Mapping[str, Any]) -> Iterator[str]:
    yield HEAD
    if value["trial"]:
        yield (
            "**These are trial figures**, of few rows or on a machine that did other things at the"
            " same\ntime: they show that the table works, and no more.\n"
        )
    machine = value["machine"]
    rows = " and ".join(f"{count:,} rows of {size}" for size, count in value["rows"].items())
    yield (
        f"Spark {value['spark']}, Kafka {value['kafka']}; {rows}, {value['per_trigger']:,} rows a"
        f" micro-batch; counted rounds: {value['rounds']}, after {value['warm_up_rounds']} to warm"
        f" up, and {value['server_warm_up_seconds']:g} s of each load of producers for Kafka's"
        f" brokers; {machine['cores']} cores, load {machine['load_before']:.1f} before and"
        f" {machine['load_after']:.1f} after.\n"
    )
    for size in value["rows"]:
        for work in WORKS:
            yield f"### {work.capitalize()}, {size}\n"
            yield from _work_table(f"{work}, {size}", value["systems"])
    yield from _ratios(value)
    yield "### What a sink promises\n"
    yield "| System | When the sink has ended a row is |"
    yield "|---|---|"
    for name, system in value["systems"].items():
        yield f"| {name} | {system['promise']} |"
    yield ""
    yield from (f"- Not measured: {name}: {why}" for name, why in value["missing"].items())


def rows_per_second(found: Mapping[str, float]) -> float:
    return found["rows"] / found["seconds"]


def rows_per_core_second(found: Mapping[str, float]) -> float:
    return found["rows"] / (found["spark_seconds"] + found["server_seconds"])


def middle_round(rounds: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the round in the middle, by rows per core-second."""
    return sorted(rounds, key=rows_per_core_second)[len(rounds) // 2]


def _work_table(key: str, systems: Mapping[str, Any]) -> Iterator[str]:
    middle = {name: middle_round(system["found"][key]) for name, system in systems.items()}
    yield (
        "| System | rows per second | rows per core-second | seconds | Spark, CPU s"
        " | servers, CPU s |"
    )
    yield "|---|---:|---:|---:|---:|---:|"
    for name in sorted(middle, key=lambda each: -rows_per_core_second(middle[each])):
        found = middle[name]
        yield (
            f"| {name} | {rows_per_second(found):,.0f} | {rows_per_core_second(found):,.0f}"
            f" | {found['seconds']:.1f} | {found['spark_seconds']:.1f}"
            f" | {found['server_seconds']:.1f} |"
        )
    yield ""


def _ratios(value: Mapping[str, Any]) -> Iterator[str]:
    systems = value["systems"]
    if not {"Waltz", REFERENCE} <= set(systems):
        return
    yield f"### Waltz as a multiple of {REFERENCE}\n"
    yield "The median of the rounds, each compared with itself; the least and the most of them."
    is_long = value["rounds"] >= 2 * WARMING_ROUNDS
    if is_long:
        yield (
            f"{REFERENCE}'s connector and brokers are compiled by Java while they run, and get"
            " cheaper from round to round\nfor longer than Waltz's Python does: the medians of the"
            f" first and of the last {WARMING_ROUNDS} rounds, per core-second,\nare told apart."
        )
    yield ""
    columns = ["rows per core-second", "rows per second"]
    if is_long:
        columns += [f"core-second, {which} {WARMING_ROUNDS} rounds" for which in ("first", "last")]
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for size in value["rows"]:
        for work in WORKS:
            key = f"{work}, {size}"
            pairs = list(
                zip(systems["Waltz"]["found"][key], systems[REFERENCE]["found"][key], strict=True)
            )
            by_core, by_clock = (
                [rate(ours) / rate(theirs) for ours, theirs in pairs]
                for rate in (rows_per_core_second, rows_per_second)
            )
            texts = [_told(by_core), _told(by_clock)]
            if is_long:
                parts = by_core[:WARMING_ROUNDS], by_core[-WARMING_ROUNDS:]
                texts += [f"{median(part):.2f}" for part in parts]
            yield f"| {key} | {' | '.join(texts)} |"
    yield ""


def _told(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
