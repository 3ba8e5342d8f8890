"""`python -m bench.storage`: one storage node against the bare disk of the same moment.

Both sides of a comparison write and sync the same bytes, by turns, into the same directory:
`pwrite` and `fdatasync` into a growing file, and a partition's `process`. A ratio of 1 is the speed
of the disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from zlib import crc32

import click
from rich.console import Console
from rich.table import Table

from bench.storage_node import NodeConnection, running_node
from tests.storage.support import make_partition, open_control
from waltz.bench.calibration import calibrate
from waltz.cli.nodes import run_loop
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.storage.drain import Drain
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.scrubber import SCRUB_SLICE_BYTES_MAX
from waltz.system.real_disk import RealDisk
from waltz.types import PartitionId, SessionId, TransactionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    SuccessResponse,
)

SESSION = SessionId(1)
PARTITION = PartitionId(0)
MIB, GIB = 1 << 20, 1 << 30

ROUNDS = 5
ROUND_BYTES = 24 * MIB
ROUND_GROUPS_MIN, ROUND_GROUPS_MAX = 24, 200
TABLE_COLUMNS = 110
WINDOW = 8
"""Groups under way at a time on a connection."""

BULK_RATIO_MIN = 0.7
SINGLE_P99_RATIO_MAX = 3.0
RESTART_SECONDS_MAX = 3.0
SCRUB_GIB_SECONDS_MAX = 60.0
SCRUB_SHARE_MAX = 0.10
SCRUB_SECONDS = 15.0
SCRUBBED_BYTES = 128 * MIB


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `ratio` is ours to the bare disk's."""

    name: str
    ours: float
    unit: str
    raw: float | None = None
    ratio: float | None = None
    target: str = ""
    is_met: bool | None = None


def with_ratio(
    name: str, unit: str, pairs: Sequence[tuple[float, float]], **target: float
) -> Figure:
    """From pairs (ours, raw) of the same round; `at_least` or `at_most` bounds the ratio."""
    ratio = median(ours / raw for ours, raw in pairs)
    text, is_met = "", None
    if "at_least" in target:
        text, is_met = f">= {target['at_least']}", ratio >= target["at_least"]
    if "at_most" in target:
        text, is_met = f"<= {target['at_most']}", ratio <= target["at_most"]
    ours, raw = (median(pair[side] for pair in pairs) for side in (0, 1))
    return Figure(name, ours, unit, raw, ratio, text, is_met)


# The load


@dataclass(frozen=True, slots=True)
class Shape:
    """Groups of `records` records with `size` bytes of data each."""

    name: str
    records: int
    size: int

    @property
    def group_bytes(self) -> int:
        return self.records * (self.size + 40)

    @property
    def groups(self) -> int:
        """Return the groups of one round."""
        return min(ROUND_GROUPS_MAX, max(ROUND_GROUPS_MIN, ROUND_BYTES // self.group_bytes))


SHAPES = [
    *(
        Shape(f"{records} x {label}", records, size)
        for size, label in ((128, "128 B"), (1024, "1 KiB"))
        for records in (1, 16, 128, 1000)
    ),
    Shape("1 MiB of 128 B", MIB // 168, 128),
    Shape("1 MiB of 1 KiB", MIB // 1064, 1024),
]
SOCKET_SHAPES = [SHAPES[0], SHAPES[6], SHAPES[9]]


class Source:
    """An endless supply of records, packed outside of the timed part."""

    def __init__(self, size: int) -> None:
        data = os.urandom(size)
        self._record = NewRecord(bytes(16), 0, data, crc32(data))
        self.next_transaction_id = TransactionId(0)

    def take(self, records: int) -> RecordBatch:
        batch = pack_records(self.next_transaction_id, [self._record] * records)
        self.next_transaction_id = batch.next_transaction_id
        return batch

    def requests(self, shape: Shape, groups: int) -> list[AppendRecordsRequest]:
        return [
            AppendRecordsRequest(SESSION, number, PARTITION, self.take(shape.records), False)
            for number in range(groups)
        ]


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as directory:
        yield Path(directory)


class BareDisk:
    """A file that grows by one synced write at a time."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self._end = 0

    def write(self, block: bytes) -> None:
        os.pwrite(self._descriptor, block, self._end)
        os.fdatasync(self._descriptor)
        self._end += len(block)

    def close(self) -> None:
        os.close(self._descriptor)


def open_partition(directory: Path) -> StoragePartition:
    directory.mkdir()
    disk = RealDisk()
    control_file = open_control(disk, directory=str(directory))
    partition = make_partition(disk, control_file, directory=str(directory))
    partition.open()
    partition.announce(SESSION)
    return partition


def timed_each(function: Callable[[int], object], count: int) -> list[float]:
    taken = []
    for number in range(count):
        began = time.perf_counter()
        function(number)
        taken.append(time.perf_counter() - began)
    return taken


def bare_seconds(bare: BareDisk, requests: Sequence[AppendRecordsRequest]) -> list[float]:
    return timed_each(lambda number: bare.write(requests[number].records.block), len(requests))


# Appends


def measure_process(shape: Shape) -> Iterator[Figure]:
    """A partition in this process: no socket, no event loop, no thread."""
    taken: list[tuple[list[float], list[float]]] = []
    with scratch() as directory:
        partition, bare = open_partition(directory / "ours"), BareDisk(directory / "raw")
        source = Source(shape.size)

        def ours(requests: Sequence[AppendRecordsRequest]) -> list[float]:
            def append(number: int) -> None:
                (answer,) = Drain(partition, requests[number : number + 1]).run()
                assert isinstance(answer, SuccessResponse), answer

            return timed_each(append, shape.groups)

        def raw(requests: Sequence[AppendRecordsRequest]) -> list[float]:
            return bare_seconds(bare, requests)

        for number in range(ROUNDS + 1):
            requests = source.requests(shape, shape.groups)
            if number % 2:
                mine, theirs = ours(requests), raw(requests)
            else:
                theirs, mine = raw(requests), ours(requests)
            taken.append((mine, theirs))
        partition.close()
        bare.close()
    yield from append_figures(shape, "", taken[1:])


def append_figures(
    shape: Shape, how: str, taken: Sequence[tuple[list[float], list[float]]]
) -> Iterator[Figure]:
    """`taken` are the seconds of each group, ours and raw, per round."""
    rates = [
        tuple(shape.group_bytes * len(side) / sum(side) / 1e6 for side in pair) for pair in taken
    ]
    bound = {"at_least": BULK_RATIO_MIN} if shape.group_bytes > 0.9 * MIB else {}
    pairs = [(ours, raw) for ours, raw in rates]
    yield with_ratio(f"append {shape.name}{how}", "MB/s", pairs, **bound)
    records = shape.records / (shape.group_bytes / 1e6)
    yield with_ratio(
        f"append {shape.name}{how}",
        "records/s",
        [(ours * records, raw * records) for ours, raw in pairs],
    )
    if shape.records == 1:
        cuts = [[quantiles(side, n=100) for side in pair] for pair in taken]
        for name, cut, bound in (
            ("p50", 49, {}),
            ("p99", 98, {"at_most": SINGLE_P99_RATIO_MAX}),
        ):
            micros = [(ours[cut] * 1e6, raw[cut] * 1e6) for ours, raw in cuts]
            yield with_ratio(f"append {shape.name}{how}, {name}", "us", micros, **bound)


async def measure_socket(shape: Shape) -> list[Figure]:
    """A node of its own process over loopback: one group at a time, and several under way."""
    alone: list[tuple[list[float], list[float]]] = []
    flowing: list[tuple[float, float]] = []
    with scratch() as directory:
        (directory / "ours").mkdir()
        bare = BareDisk(directory / "raw")
        with running_node(directory / "ours") as node:
            connection = await NodeConnection.open(node.address)
            source = Source(shape.size)
            for _ in range(ROUNDS + 1):
                requests = source.requests(shape, shape.groups)
                theirs = bare_seconds(bare, requests)
                mine = []
                for request in requests:
                    began = time.perf_counter()
                    await connection.send(request)
                    await connection.succeed()
                    mine.append(time.perf_counter() - began)
                alone.append((mine, theirs))
                began = time.perf_counter()
                requests = source.requests(shape, shape.groups)
                began = time.perf_counter()
                await send_all(connection, requests)
                rate = shape.group_bytes * len(requests) / 1e6
                flowing.append((rate / (time.perf_counter() - began), rate / sum(theirs)))
            connection.close()
            node.stop()
        bare.close()
    bound = {"at_least": BULK_RATIO_MIN} if shape.group_bytes > 0.9 * MIB else {}
    name = f"append {shape.name}, socket, {WINDOW} under way"
    return [
        *append_figures(shape, ", socket", alone[1:]),
        with_ratio(name, "MB/s", flowing[1:], **bound),
    ]


async def send_all(connection: NodeConnection, requests: Sequence[AppendRecordsRequest]) -> None:
    room = asyncio.Semaphore(WINDOW)

    async def receive() -> None:
        for _ in requests:
            await connection.succeed()
            room.release()

    receiving = asyncio.create_task(receive())
    for request in requests:
        await room.acquire()
        await connection.send(request)
    await receiving


# Restart


async def measure_restart(directory: Path, size_bytes: int) -> list[Figure]:
    """Fill a node, kill it in the middle of appends, start it; stop it, start it."""
    shape = Shape("", MIB // 1064, 1024)
    source = Source(shape.size)
    with running_node(directory) as node:
        connection = await NodeConnection.open(node.address)
        for _ in range(max(1, size_bytes // (64 * shape.group_bytes))):
            await send_all(connection, source.requests(shape, 64))
        for request in source.requests(shape, 3):
            await connection.send(request)
        node.kill()
    figures = []
    for how, is_clean in (("kill -9", False), ("stop", True)):
        for caches, is_cold in (("", False), (", nothing cached", True)):
            taken = [await restart(directory, source, is_clean, is_cold) for _ in range(3)]
            for name, number in (("process ready", 0), ("directory open", 1)):
                seconds = median(pair[number] for pair in taken)
                is_bounded = number == 0
                figures.append(
                    Figure(
                        f"restart after {how}{caches}, {name}",
                        seconds,
                        "s",
                        target=f"<= {RESTART_SECONDS_MAX}" if is_bounded else "",
                        is_met=seconds <= RESTART_SECONDS_MAX if is_bounded else None,
                    )
                )
    return figures


async def restart(
    directory: Path, source: Source, is_clean: bool, is_cold: bool
) -> tuple[float, float]:
    """Start the node, append to it, and let it end; return the times of its start."""
    if is_cold:
        drop_cached(directory)
    shape = Shape("", 1, 1024)
    with running_node(directory) as node:
        connection = await NodeConnection.open(node.address)
        await connection.send(MaxTransactionIdRequest(SESSION, 0, PARTITION, offline=False))
        answer = await connection.answer()
        assert isinstance(answer, MaxTransactionIdResponse), answer
        source.next_transaction_id = TransactionId(answer.transaction_id + 1)
        for request in source.requests(shape, 1500):
            await connection.send(request)
        await connection.succeed()
        if is_clean:
            connection.close()
            node.stop()
        else:
            node.kill()
    return node.ready_seconds, node.open_seconds


def drop_cached(directory: Path) -> None:
    """Drop the system's cache of the files."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


# Scrubbing


def measure_slices(size: int) -> Iterator[Figure]:
    """Measure, with a partition in this process that does nothing else, the cost of a byte."""
    with scratch() as directory:
        partition = open_partition(directory / "ours")
        shape = Shape("", MIB // (size + 40), size)
        source = Source(size)
        for request in source.requests(shape, SCRUBBED_BYTES // MIB):
            Drain(partition, [request]).run()
        drop_cached(directory)
        began = time.thread_time()
        position, taken = TransactionId(0), []
        while position < partition.log.next_transaction_id:
            start = time.perf_counter()
            step = partition.scrub(position, SCRUB_SLICE_BYTES_MAX)
            taken.append(time.perf_counter() - start)
            position = step.next_transaction_id
        busy = time.thread_time() - began
        partition.close()
    name = f"scrub {size} B records"
    yield Figure(f"{name}, nothing cached", SCRUBBED_BYTES / sum(taken) / 1e6, "MB/s")
    yield Figure(f"{name}, of a core for 1 GiB", busy / SCRUBBED_BYTES * GIB, "s")
    micros = quantiles(taken, n=100)[98] * 1e6
    yield Figure(f"{name}, largest slice, p99", micros, "us")


async def measure_scrub(directory: Path) -> list[Figure]:
    """A node at its own pace, for a while: how long a GiB takes it, and how much of a core."""
    with running_node(directory, scrub=True) as node:
        await asyncio.sleep(SCRUB_SECONDS)
        report = node.stop()
    seconds = GIB / report["bytes"] * report["seconds"]
    share = report["cpu_seconds"] / report["seconds"]
    return [
        Figure(
            "scrub at its pace, 1 GiB", seconds, "s",
            target=f"<= {SCRUB_GIB_SECONDS_MAX}", is_met=seconds <= SCRUB_GIB_SECONDS_MAX,
        ),
        Figure(
            "scrub at its pace, of a core", 100 * share, "%",
            target=f"<= {100 * SCRUB_SHARE_MAX:.0f}", is_met=share <= SCRUB_SHARE_MAX,
        ),
    ]  # fmt: skip


# The whole


def measure(restart_bytes: int) -> Iterator[Figure]:
    for shape in SHAPES:
        yield from measure_process(shape)
    for shape in SOCKET_SHAPES:
        yield from run_loop(measure_socket(shape))
    for size in (128, 1024):
        yield from measure_slices(size)
    if restart_bytes:
        with scratch() as directory:
            yield from run_loop(measure_restart(directory, restart_bytes))
            yield from run_loop(measure_scrub(directory))


def shown(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def table_of(figures: Sequence[Figure]) -> Table:
    table = Table()
    for name in ("what", "ours", "bare disk", "ratio", "target"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for figure in figures:
        met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.is_met]
        table.add_row(
            figure.name,
            f"{shown(figure.ours)} {figure.unit}",
            "" if figure.raw is None else shown(figure.raw),
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            f"{figure.target} {met}",
        )
    return table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option(
    "--restart-mib",
    default=1024,
    show_default=True,
    help="Content of a node that restarts; 0: skip.",
)
def main(as_json: bool, restart_mib: int) -> None:
    """Measure one storage node on the disk of the current directory."""
    calibration = calibrate()
    console = Console(stderr=True)
    figures = []
    for figure in measure(restart_mib * MIB):
        console.print(f"[dim]{figure.name}: {figure.ours:,.2f} {figure.unit}[/]")
        figures.append(figure)
    if as_json:
        print(
            json.dumps(
                {
                    "calibration": asdict(calibration),
                    "figures": [asdict(figure) for figure in figures],
                },
                indent=2,
            )
        )
        return
    for line in calibration.lines():
        print(line)
    Console(width=TABLE_COLUMNS).print(table_of(figures))


if __name__ == "__main__":
    sys.exit(main())
