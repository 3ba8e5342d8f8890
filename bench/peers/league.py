"""The league table, printed from the measured figures only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.peers.peer import LOADS
from bench.peers.spark_table import spark_table

HEAD = """\
# The league

Appends to Waltz and to its alternatives, all processes of a system on one machine, each system by
itself. Printed by `make league` from `bench/league.json`; nobody types in it.

The order is that of appends per core-second: per second of processor time of all processes
together, the one that makes the load too. "p50 in syncs" is the median in write+syncs of 4 KiB of
this disk, "CPU in packs" the processor time of an append in `struct.pack` and CRC-32 of 128 bytes,
both as calibrated just before that system was measured. Compare only what promises the same: see
*Durability*.
"""

COLUMNS = (
    "System",
    "per second",
    "per core-second",
    "p50 ms",
    "p99 ms",
    "p50 in syncs",
    "CPU in packs",
)

NOT_HERE = {
    "Java Waltz": (
        "not to be had from Maven Central, which answers `com.wepay.waltz` with 404; its figures in"
        " the workloads `original-*`, taken before on a machine of this kind, are in"
        " [original.md](original.md)"
    ),
}
"""Systems that have no driver here, and why."""


def page(value: Mapping[str, Any], spark: Mapping[str, Any] | None) -> str:
    """Return the page: the table, and the section on Spark if there are figures of it."""
    return table(value) if spark is None else f"{table(value)}\n{spark_table(spark)}"


def table(value: Mapping[str, Any]) -> str:
    """Return the table of appends. `value` is the output of `python -m bench.peers --json`."""
    return "\n".join(_lines(value)).rstrip() + "\n"


def _lines(value: Mapping[str, Any]) -> Iterator[str]:
    yield HEAD
    if value["trial"]:
        yield (
            "**These are trial figures**, taken in short rounds on a machine that did other\n"
            "things at the same time: they show that the table works, and no more.\n"
        )
    machine = value["machine"]
    yield (
        f"{machine['cores']} cores, load {machine['load_before']:.1f} before and"
        f" {machine['load_after']:.1f} after; {value['rounds']} rounds of {value['seconds']:g} s,"
        " the one in the middle.\n"
    )
    for load in LOADS:
        yield f"## {load.name[0].upper()}{load.name[1:]}\n"
        yield from _load_table(load.name, value)
    yield "## Durability\n"
    yield "| System | When an append is answered it is | Driver | A batch | Sync us | Pack ns |"
    yield "|---|---|---|---|---:|---:|"
    for name, system in value["systems"].items():
        sync, pack = (system["calibration"][each] for each in ("sync_seconds", "pack_seconds"))
        yield (
            f"| {name} | {system['durability']} | {system['driver']} | {system['batching']}"
            f" | {sync * 1e6:.0f} | {pack * 1e9:.0f} |"
        )
    yield "\n## Not measured\n"
    missing = [
        f"- {name}, {load}: {reason}"
        for name, system in value["systems"].items()
        for load, reason in system["missing"].items()
    ]
    yield from missing
    yield from (f"- {name}: {reason}" for name, reason in NOT_HERE.items())


def _load_table(load: str, value: Mapping[str, Any]) -> Iterator[str]:
    rows: Sequence[tuple[float, str]] = sorted(
        (
            (
                found["transactions"] / found["processor_seconds"],
                _row(name, found, system["calibration"]),
            )
            for name, system in value["systems"].items()
            if (found := system["found"].get(load)) is not None
        ),
        reverse=True,
    )
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" + "|---:" * (len(COLUMNS) - 1) + "|"
    yield from (row for _, row in rows)
    yield ""


def _row(name: str, found: Mapping[str, Any], calibration: Mapping[str, float]) -> str:
    transactions, used = found["transactions"], found["processor_seconds"]
    values = (
        name,
        f"{transactions / found['seconds']:,.0f}",
        f"{transactions / used:,.0f}",
        f"{found['p50_seconds'] * 1e3:.2f}",
        f"{found['p99_seconds'] * 1e3:.2f}",
        f"{found['p50_seconds'] / calibration['sync_seconds']:.1f}",
        f"{used / transactions / calibration['pack_seconds']:,.0f}",
    )
    return f"| {' | '.join(values)} |"
