"""`waltz disk statistic`, `dump` and `checksum` (TL-71, TL-72, SD-23)."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.cli.disk_commands import run_disk
from tests.storage.independent_reader import parse_directory
from tests.storage.inspected import (
    flipped,
    our_files,
    put,
    segment_name,
    without,
    write_files,
)
from waltz.cli.disk_content import readable_data

FILES = our_files((5, 7, 4), (3, 2), mark=2)
RECORDS = parse_directory(FILES).records(0)
SEG = segment_name(0, 5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_files(tmp_path / "storage", FILES)


def dumped(*arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_disk("dump", "--json", *arguments).stdout.splitlines()]


def ids(*arguments: str | Path) -> list[int]:
    return [value["transaction_id"] for value in dumped("--metadata", *arguments)]


# statistic


def test_sizes_are_shown_per_partition(directory: Path) -> None:
    """TL-71."""
    shown = run_disk("statistic", directory)
    assert shown.exit_code == 0
    heading, first, second = (line.split() for line in shown.stdout.splitlines())
    assert heading == ["partition", "rows", "min", "average", "median", "max", "data", "records"]
    sizes = [len(record.data) for record in RECORDS]
    assert first[:4] == ["0", "16", str(min(sizes)), f"{sum(sizes) / 16:.1f}"]
    assert second[:2] == ["1", "5"]
    exact = json.loads(run_disk("statistic", directory / "0", "--json").stdout)["partitions"]
    assert [value["data_bytes"] for value in exact] == [sum(sizes)]


def test_an_empty_log_has_no_sizes(tmp_path: Path) -> None:
    shown = run_disk("statistic", write_files(tmp_path, our_files((0,))))
    assert shown.stdout.splitlines()[1].split()[:6] == ["0", "0", "-", "-", "-", "-"]


def test_what_is_left_out_of_the_sizes_is_told(tmp_path: Path) -> None:
    shown = run_disk("statistic", write_files(tmp_path, flipped(FILES, SEG, 200)))
    assert "places do not check out" in shown.stderr


# dump


def test_a_dump_needs_to_know_what_to_show(directory: Path) -> None:
    """TL-72."""
    refused = run_disk("dump", directory)
    assert (refused.exit_code, "--metadata or --records" in refused.output) == (2, True)


def test_records_are_shown_one_a_line(directory: Path) -> None:
    lines = run_disk("dump", "--records", directory / "0").stdout.splitlines()
    assert lines == [f"{record.transaction_id}\t{record.data.decode()}" for record in RECORDS]


def test_metadata_are_shown_in_full(directory: Path) -> None:
    line = run_disk("dump", "--metadata", "--transaction", "6", directory / "0").stdout
    record = RECORDS[6]
    place = 128 + 40 + len(RECORDS[5].data)
    assert line == (
        f"6\trequest 3/1/0/6\theader 66\t{len(record.data)} bytes"
        f"\tCRC-32 {record.data_checksum:08x}\tsegment 5\tat byte {place}\n"
    )
    (value,) = dumped("--metadata", "--records", "--transaction", "6", directory / "0")
    assert value == {
        "partition_id": 0,
        "transaction_id": 6,
        "request_id": {
            "client_id": 3,
            "generation": 1,
            "partition_id": 0,
            "sequence_number": 6,
        },
        "header": 66,
        "data_bytes": len(record.data),
        "data_checksum": f"{record.data_checksum:08x}",
        "segment": 5,
        "offset": place,
        "data_offset": place + 36,
        "data": record.data.decode(),
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), range(16)),
        (("--from", "3"), range(3, 16)),
        (("--to", "6"), range(7)),
        (("--from", "4", "--to", "13"), range(4, 14)),
        (("--from", "11", "--limit", "2"), range(11, 13)),
        (("--limit", "7"), range(7)),
        (("--transaction", "12"), range(12, 13)),
        (("--from", "99"), ()),
    ],
)
def test_a_range_is_shown(directory: Path, arguments: tuple[str, ...], expected: range) -> None:
    """TL-72: across segments."""
    assert ids(*arguments, directory / "0") == list(expected)


def test_a_segment_or_a_whole_directory_is_shown(directory: Path) -> None:
    assert ids(directory / SEG) == list(range(5, 12))
    assert ids(directory) == [*range(16), *range(5)]


@pytest.mark.parametrize(
    "arguments",
    [("--from", "5", "--to", "4"), ("--transaction", "3", "--from", "1"), ("--transaction", "16")],
)
def test_a_range_that_cannot_be_is_refused(directory: Path, arguments: tuple[str, ...]) -> None:
    assert run_disk("dump", "-m", *arguments, directory / "0").exit_code == 2


def test_headers_of_files_are_shown(directory: Path) -> None:
    shown = run_disk("dump", "--header", directory / "0")
    assert [line.rpartition(" ")[2] for line in shown.stdout.splitlines()] == ["0", "5", "12"]
    values = [
        json.loads(line)
        for line in run_disk("dump", "--header", "--json", directory / "0").stdout.splitlines()
    ]
    assert [value["first_transaction_id"] for value in values] == [0, 5, 12]


def test_a_header_cut_short_is_told(tmp_path: Path) -> None:
    directory = write_files(tmp_path, {**without(FILES, SEG), SEG: b"short"})
    assert "header of 5 bytes" in run_disk("dump", "--header", directory / "0").stderr


def test_what_does_not_check_out_is_told_and_the_rest_shown(tmp_path: Path) -> None:
    directory = write_files(tmp_path, flipped(FILES, SEG, 128 + 40))
    shown = run_disk("dump", "--records", directory / "0")
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert len(lines) == 16
    assert lines[5].startswith("5\tdoes not check out at byte 128 of ")
    values = dumped("--records", directory / "0")
    assert (values[5]["transaction_id"], values[5]["next_transaction_id"]) == (5, 6)
    assert "CRC-32" in values[5]["error"]
    assert run_disk("dump", "--records", "--transaction", "6", directory / "0").exit_code == 0


def test_a_torn_tail_is_no_failure(tmp_path: Path) -> None:
    last = segment_name(0, 12)
    directory = write_files(tmp_path, {**FILES, last: FILES[last] + b"torn"})
    shown = run_disk("dump", "--records", directory / "0")
    assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 17)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"text", {"data": "text"}),
        ("größer".encode(), {"data": "größer"}),
        (b"", {"data": ""}),
        (b"two\nlines", {"hex": b"two\nlines".hex()}),
        (b"\xff\x00", {"hex": "ff00"}),
    ],
)
def test_data_are_text_where_they_can_be(data: bytes, shown: dict[str, str]) -> None:
    assert readable_data(data, None) == shown


def test_a_deserializer_makes_data_readable(directory: Path) -> None:
    """TL-72: by its import path."""
    lines = run_disk(
        "dump", "-r", "-d", "builtins:len", "--limit", "3", directory / "0"
    ).stdout.splitlines()
    assert lines == [f"{n}\t{len(RECORDS[n].data)}" for n in range(3)]


def test_a_deserializer_beside_us_is_found(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders_codec.py").write_text(
        "class Codec:\n    @staticmethod\n    def read(data):\n        return data.upper()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    shown = run_disk("dump", "-r", "-d", "orders_codec:Codec.read", "-t", "1", directory / "0")
    assert shown.stdout == f"1\t{RECORDS[1].data.upper()!r}\n"


def test_a_deserializer_that_raises_is_told_for_that_record(directory: Path) -> None:
    """TL-72."""
    shown = run_disk("dump", "-r", "-d", "builtins:int", "--limit", "2", directory / "0")
    assert shown.exit_code == 0
    assert len(shown.stdout.splitlines()) == 2
    assert "the deserializer raised ValueError" in shown.stdout
    (value,) = dumped("-r", "-d", "builtins:int", "-t", "0", directory / "0")
    assert value["hex"] == RECORDS[0].data.hex()


def test_a_deserializer_that_is_none_is_refused(directory: Path) -> None:
    refused = run_disk("dump", "-r", "-d", "math:pi", directory)
    assert (refused.exit_code, "--deserializer 'math:pi'" in refused.output) == (2, True)


# checksum


def test_replicas_are_compared_by_their_digests(tmp_path: Path) -> None:
    """SD-23: whatever their segments are, and up to a transaction that all have."""
    one = write_files(tmp_path / "one", FILES)
    other = write_files(tmp_path / "other", our_files((9, 9), (5,), mark=2))
    rows = [
        json.loads(run_disk("checksum", path, "--json", "--to", "15").stdout)
        for path in (one, other)
    ]
    expected = sha256(b"".join(record.to_bytes() for record in RECORDS)).hexdigest()
    assert [row[0]["sha256_to"] for row in rows] == [expected, expected]
    assert [row[0]["last_transaction_id"] for row in rows] == [15, 17]
    assert rows[0][0]["sha256"] == expected != rows[1][0]["sha256"]
    assert rows[0][0]["sha256_to_low_water_mark"] == rows[1][0]["sha256_to_low_water_mark"]
    assert rows[0][1] == rows[1][1] | {"path": rows[0][1]["path"]}


def test_digests_are_short_for_the_eye(directory: Path) -> None:
    shown = run_disk("checksum", directory, "--to", "4")
    row = shown.stdout.splitlines()[1].split()
    assert (row[0], row[1], row[3]) == ("0", "2", "15")
    assert all(len(row[place]) == 16 for place in (2, 4, 5))


def test_a_digest_that_ends_early_says_why(tmp_path: Path) -> None:
    directory = write_files(tmp_path, flipped(FILES, SEG, 128 + 40))
    shown = run_disk("checksum", directory / "0")
    assert "ends early: transaction 5: CRC-32" in shown.stderr
    assert "-" in run_disk("checksum", directory / "0", "--to", "9").stdout.splitlines()[1].split()


def test_a_segment_alone_has_no_digest(directory: Path) -> None:
    assert run_disk("checksum", directory / SEG).exit_code == 2
    assert put(FILES, SEG, 0, b"")[SEG] == FILES[SEG]
