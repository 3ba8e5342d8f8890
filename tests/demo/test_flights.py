"""Reading flights, and what one is in the log."""

from __future__ import annotations

import json
import zipfile
from itertools import islice
from pathlib import Path

import pytest

from demo.flights import (
    CANCELLED,
    DIVERTED,
    EVENT_FIELDS,
    FLIGHT_COUNT,
    FLOWN,
    HEADING,
    BrokenRowError,
    Flight,
    aircraft_id,
    flights_file,
    parse_flights,
    read_flights,
    transaction_data,
)

FIRST = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
NOT_FLOWN = "2013,9,30,NA,840,NA,NA,1020,NA,MQ,3531,NA,LGA,RDU,NA,431,8,40,2013-09-30T12:00:00Z"
ELSEWHERE = "2013,1,1,1525,1530,-5,1934,1805,NA,MQ,4525,N719MQ,LGA,XNA,NA,1147,15,30,x"


def flights(*rows: str) -> list[Flight]:
    return list(parse_flights([f"{HEADING}\n", *(f"{row}\n" for row in rows)], "flights.csv"))


def test_a_row_is_a_flight() -> None:
    assert flights(FIRST) == [
        Flight(
            number=1,
            year=2013,
            month=1,
            day=1,
            departure_time=517,
            scheduled_departure=515,
            departure_delay=2,
            arrival_time=830,
            scheduled_arrival=819,
            arrival_delay=11,
            carrier="UA",
            flight=1545,
            tail_number="N14228",
            origin="EWR",
            destination="IAH",
            air_time=227,
            distance=1400,
            hour=5,
            minute=15,
            scheduled_at="2013-01-01T10:00:00Z",
        )
    ]


def test_the_header_says_what_became_of_a_flight() -> None:
    assert [each.kind for each in flights(FIRST, NOT_FLOWN, ELSEWHERE)] == [
        FLOWN,
        CANCELLED,
        DIVERTED,
    ]


def test_a_flight_without_a_tail_number_counts_for_its_carrier() -> None:
    assert [each.aircraft for each in flights(FIRST, NOT_FLOWN)] == ["N14228", "MQ unknown"]


def test_the_data_is_compact_json_of_everything_known() -> None:
    (flight,) = flights(NOT_FLOWN)
    data = transaction_data(flight, 7)
    assert b" :" not in data
    assert b": " not in data
    content = json.loads(data)
    assert tuple(content) == EVENT_FIELDS
    assert content == {**flight._asdict(), "aircraft": "MQ unknown", "leg": 7}


def test_an_aircraft_has_the_same_number_in_every_process() -> None:
    assert aircraft_id("N14228") == 803770263630268844
    assert 0 <= aircraft_id("") < 2**63


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (FIRST.replace(",1400,", ",far,"), "field distance is 'far', expected a whole number"),
        (FIRST.replace("2013,1,1,", "2013,NA,1,", 1), "field month is 'NA'"),
        (FIRST.replace(",517,", ",5.5,"), "field dep_time is '5.5'"),
        (FIRST + ",more", "expected 19 fields, found 20"),
        ("", "expected 19 fields, found 0"),
        ("2013,1", "expected 19 fields, found 2"),
        (FIRST.replace("UA", '"UA'), "unexpected end of data"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(row: str, fault: str) -> None:
    with pytest.raises(BrokenRowError) as raised:
        flights(FIRST, row)
    assert str(raised.value).startswith(f"flights.csv, line 3: {fault}")


def test_another_heading_is_another_file() -> None:
    with pytest.raises(BrokenRowError, match=r"^flights.csv, line 1: expected the heading"):
        list(parse_flights(["carrier,name\n"], "flights.csv"))
    with pytest.raises(BrokenRowError, match=r"found ''$"):
        list(parse_flights([], "flights.csv"))


def test_shares_are_every_nth_flight_and_together_all(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    rows = [FIRST.replace("1545", str(number)) for number in range(10)]
    path.write_text("\n".join([HEADING, *rows]))
    everything = list(read_flights(path))
    shares = [list(read_flights(path, share=index, share_count=3)) for index in range(3)]
    assert [each.number for each in shares[1]] == [2, 5, 8]
    assert sorted(flight for share in shares for flight in share) == everything
    limited = read_flights(path, share=1, share_count=3, limit=5)
    assert [each.flight for each in limited] == [1, 4]


def test_a_broken_row_of_a_share_is_named_by_its_line_in_the_file() -> None:
    lines = [HEADING, FIRST, FIRST, "broken", FIRST]
    with pytest.raises(BrokenRowError, match="line 4"):
        list(parse_flights(lines, "flights.csv", share=2, share_count=3))
    assert len(list(parse_flights(lines, "flights.csv", share=0, share_count=3))) == 2


def test_a_broken_row_in_an_archive_names_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("flights.csv", f"{HEADING}\nbroken\n")
    with pytest.raises(BrokenRowError, match=r"flights\.csv\.zip/flights\.csv, line 2: expected"):
        list(read_flights(path))


def test_the_real_file_is_read_from_its_package() -> None:
    first = next(islice(read_flights(flights_file()), 1))
    assert first.tail_number == "N14228"
    *_, last = read_flights(flights_file(), share=FLIGHT_COUNT % 1000 - 1, share_count=1000)
    assert last.number == FLIGHT_COUNT
