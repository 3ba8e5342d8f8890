"""`waltz disk statistic`, `dump` and `checksum`: the content of records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from waltz.cli.disk_group import WrongCallError
from waltz.cli.disk_output import disk_door, human_bytes, path_argument, shown, target_at
from waltz.cli.moments import moment
from waltz.cli.output import json_option, new_table, print_json, print_table, progress_bar
from waltz.cli.user_code import named_callable
from waltz.record import RECORD_HEADER_BYTES, Record
from waltz.storage.inspection.content import (
    digests,
    partition_parts,
    statistics,
    target_partitions,
)
from waltz.storage.inspection.promises import NO_PROMISES, read_promises
from waltz.storage.inspection.survey import PartitionFiles
from waltz.storage.inspection.walk import Gap
from waltz.storage.log.segment import DATA_SUFFIX, SEGMENT_HEADER, SEGMENT_HEADER_BYTES
from waltz.types import NOTHING, TransactionId

DIGEST_DIGITS_SHOWN = 16

# statistic


@click.command()
@path_argument("PATH")
@json_option
def statistic(path: Path, as_json: bool) -> None:
    """Show the number of records, and the sizes of their data."""
    target = target_at(path)
    partitions = target_partitions(disk_door, target)
    rows = []
    with progress_bar("statistic", sum(files.bytes for files in partitions)) as progress:
        for files in partitions:
            parts = (part for _, part in partition_parts(disk_door, files))
            rows.append((files, statistics(parts, progress)))
    if as_json:
        values = [
            {"partition_id": files.partition_id, "path": files.directory} | asdict(found)
            for files, found in rows
        ]
        print_json({"path": str(path), "partitions": values})
    else:
        table = new_table("partition", "rows", "min", "average", "median", "max", "data", "records")
        for files, found in rows:
            table.add_row(
                shown(files.partition_id),
                str(found.rows),
                shown_size(found.data_bytes_min),
                shown_size(found.data_bytes_average),
                shown_size(found.data_bytes_median),
                shown_size(found.data_bytes_max),
                human_bytes(found.data_bytes),
                human_bytes(found.total_bytes),
            )
        print_table(table)
    for files, found in rows:
        if found.gaps:
            click.echo(
                f"{files.directory}: {found.gaps} places do not check out and were left out; see"
                " waltz disk verify",
                err=True,
            )


def shown_size(size: float | None) -> str:
    if size is None:
        return "-"
    return f"{size:.1f}" if size % 1 else f"{size:.0f}"


# dump

Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class RecordsShown:
    """The records that `dump` shows, and which parts of them. `end` is None for no end."""

    metadata: bool
    records: bool
    start: TransactionId
    end: int | None
    deserializer: Deserializer | None
    as_json: bool


@click.command()
@path_argument("PATH")
@click.option("--metadata", "-m", is_flag=True, help="ID, request ID, header, size, place.")
@click.option("--records", "-r", is_flag=True, help="The data: as text, else in hex.")
@click.option("--header", is_flag=True, help="The header of each segment file.")
@click.option("--transaction", "-t", type=click.IntRange(min=0), help="Only this transaction.")
@click.option("--from", "start", type=click.IntRange(min=0), help="First transaction.")
@click.option("--to", "last", type=click.IntRange(min=0), help="Last transaction.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="At most this many transactions per partition."
)
@click.option("--deserializer", "-d", help="module:callable that makes data readable.")
@json_option
def dump(
    path: Path,
    metadata: bool,
    records: bool,
    header: bool,
    transaction: int | None,
    start: int | None,
    last: int | None,
    limit: int | None,
    deserializer: str | None,
    as_json: bool,
) -> None:
    """Print the records of a partition or a segment, one a line; with --json an object a line."""
    if not (metadata or records or header):
        raise click.UsageError("nothing to show: give --metadata or --records")
    if transaction is not None and (start is not None or last is not None):
        raise click.UsageError("--transaction excludes --from and --to")
    first = transaction if transaction is not None else start or 0
    ends = [end + 1 for end in (transaction, last) if end is not None]
    ends += [first + limit] if limit is not None else []
    if ends and min(ends) <= first:
        raise click.UsageError(f"--to {last} is before --from {first}")
    what = RecordsShown(
        metadata,
        records,
        TransactionId(first),
        min(ends, default=None),
        None if deserializer is None else named_callable("--deserializer", deserializer),
        as_json,
    )
    count = 0
    is_damaged = False
    for files in target_partitions(disk_door, target_at(path)):
        if header:
            dump_headers(files, as_json=as_json)
        if metadata or records:
            found, has_gaps = dump_partition(files, what)
            count += found
            is_damaged |= has_gaps
    if transaction is not None and (metadata or records) and not count and not is_damaged:
        raise WrongCallError(f"{path} has no transaction {transaction}")
    if is_damaged:
        sys.exit(1)


def dump_headers(files: PartitionFiles, *, as_json: bool) -> None:
    for segment in files.segments:
        if segment.data_bytes is None:
            continue
        place = files.path(segment.first, DATA_SUFFIX)
        file = disk_door.open_to_read(place)
        try:
            head = file.read_at(0, SEGMENT_HEADER_BYTES)
        finally:
            file.close()
        if len(head) < SEGMENT_HEADER_BYTES:
            click.echo(f"{place}: header of {len(head)} bytes", err=True)
            continue
        version, created, key, partition_id, first = SEGMENT_HEADER.unpack(head)
        value = {
            "path": place,
            "format_version": version,
            "created_milliseconds": created,
            "cluster_key": key.hex(),
            "partition_id": partition_id,
            "first_transaction_id": first,
        }
        if as_json:
            click.echo(json.dumps(value))
        else:
            click.echo(
                f"{place}: format {version}, created {moment(created)}, cluster key {key.hex()},"
                f" partition {partition_id}, from transaction {first}"
            )


def dump_partition(files: PartitionFiles, what: RecordsShown) -> tuple[int, bool]:
    """Print records; return their number, and whether some before others were damaged."""
    count = 0
    has_gaps = False
    for first, part in partition_parts(disk_door, files, what.start):
        if isinstance(part, Gap):
            following = part.next_transaction_id or files.following(first)
            if what.end is not None and part.first >= what.end:
                break
            if following is not None and following <= what.start:
                continue
            print_gap(files, first, part, as_json=what.as_json)
            has_gaps |= following is not None
            continue
        batch = part.batch
        if what.end is not None and batch.first_transaction_id >= what.end:
            break
        skipped = max(0, what.start - batch.first_transaction_id)
        end = len(batch)
        if what.end is not None:
            end = min(end, what.end - batch.first_transaction_id)
        for index in range(skipped, end):
            place = part.offset + int(batch.offsets[index])
            print_record(files, first, batch.record(index), place, what)
            count += 1
    return count, has_gaps


def print_gap(files: PartitionFiles, first: TransactionId, gap: Gap, *, as_json: bool) -> None:
    path = files.path(first, DATA_SUFFIX)
    if as_json:
        value = {
            "transaction_id": gap.first,
            "next_transaction_id": gap.next_transaction_id,
            "path": path,
            "offset": gap.offset,
            "error": gap.reason,
        }
        click.echo(json.dumps(value))
    else:
        click.echo(f"{gap.first}\tdoes not check out at byte {gap.offset} of {path}: {gap.reason}")


def print_record(
    files: PartitionFiles, first: TransactionId, record: Record, offset: int, what: RecordsShown
) -> None:
    request = record.request_id
    data = readable_data(record.data, what.deserializer) if what.records else {}
    if what.as_json:
        value: dict[str, Any] = {
            "partition_id": files.partition_id,
            "transaction_id": record.transaction_id,
        }
        if what.metadata:
            value |= {
                "request_id": request._asdict(),
                "header": record.header,
                "data_bytes": len(record.data),
                "data_checksum": f"{record.checksum:08x}",
                "segment": first,
                "offset": offset,
                "data_offset": offset + RECORD_HEADER_BYTES,
            }
        click.echo(json.dumps(value | data))
        return
    columns = [str(record.transaction_id)]
    if what.metadata:
        columns += [
            f"request {'/'.join(map(str, request))}",
            f"header {record.header}",
            f"{len(record.data)} bytes",
            f"CRC-32 {record.checksum:08x}",
            f"segment {first}",
            f"at byte {offset}",
        ]
    columns += (f"{name} {text}" if name != "data" else text for name, text in data.items())
    click.echo("\t".join(columns))


def readable_data(data: bytes, deserializer: Deserializer | None) -> dict[str, str]:
    """Return the data for people, by kind: `data` as text, `hex`, or the `error` of the
    deserializer."""
    if deserializer is not None:
        try:
            return {"data": str(deserializer(data))}
        except Exception as error:
            return {"error": f"the deserializer raised {error!r}", "hex": data.hex()}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return {"data": text} if text.isprintable() else {"hex": data.hex()}


# checksum


@click.command()
@path_argument("DIRECTORY|PARTITION")
@click.option("--to", "last", type=click.IntRange(min=0), help="Last transaction of the digest.")
@json_option
def checksum(path: Path, last: int | None, as_json: bool) -> None:
    """Print a digest of each partition's records, to compare replicas: up to the low-water mark,
    which all replicas have from the same session, and up to the last record."""
    target = target_at(path)
    if target.first is not None:
        raise WrongCallError(f"{path} is one segment: give its partition's directory")
    partitions = target_partitions(disk_door, target)
    promises = read_promises(disk_door, target.directory) if target.directory else NO_PROMISES
    rows = []
    with progress_bar("checksum", sum(files.bytes for files in partitions)) as progress:
        for files in partitions:
            info = promises.info(files.partition_id)
            mark = info.low_water_mark if info is not None else None
            lasts = [TransactionId(each) for each in (mark, last) if each not in (None, NOTHING)]
            found = digests(disk_door, files, lasts=lasts, progress=progress)
            rows.append((files, mark, found))
    if as_json:
        print_json(
            [
                {
                    "partition_id": files.partition_id,
                    "path": files.directory,
                    "low_water_mark": mark,
                    "sha256_to_low_water_mark": None if mark is None else found.by_last.get(mark),
                    "to_transaction_id": last,
                    "sha256_to": None if last is None else found.by_last.get(TransactionId(last)),
                    "last_transaction_id": found.last_transaction_id,
                    "sha256": found.sha256,
                    "ends_because": found.reason,
                }
                for files, mark, found in rows
            ]
        )
        return
    headings = ["partition", "low-water mark", "digest up to it", "last", "digest up to it"]
    table = new_table(*headings, *([f"digest up to {last}"] if last is not None else []))
    for files, mark, found in rows:
        cells = [
            shown(files.partition_id),
            shown(mark),
            shown_digest(None if mark is None else found.by_last.get(mark)),
            str(found.last_transaction_id),
            shown_digest(found.sha256),
        ]
        if last is not None:
            cells.append(shown_digest(found.by_last.get(TransactionId(last))))
        table.add_row(*cells)
    print_table(table)
    for files, _, found in rows:
        if found.reason is not None:
            click.echo(f"{files.directory} ends early: {found.reason}", err=True)


def shown_digest(digest: str | None) -> str:
    return "-" if digest is None else digest[:DIGEST_DIGITS_SHOWN]
