"""The judge of the road finds what is planted, and accepts what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rolling.accounts import judge, last_held, read_account, read_replicas
from tests.storage.independent_reader import LogRecord
from tests.wire.golden import DIRECTORY

JOURNAL = """\
? 0 1
= 0 1 0
? 0 2
? 0 3
- 0 3
? 0 4
= 0 4 2
? 1 1
= 1 1 0
"""


def record(number: int, text: str) -> LogRecord:
    return LogRecord(number, bytes(16), 0, 0, f"{text} ....".encode())


RIGHT = {
    0: [record(0, "a 0 1"), record(1, "a 0 2"), record(2, "a 0 4")],
    1: [record(0, "a 1 1")],
}


def judged(tmp_path: Path, log: dict[int, list[LogRecord]], journal: str = JOURNAL) -> list[str]:
    path = tmp_path / "a.txt"
    path.write_text(journal)
    return list(judge(log, [read_account(path)]))


def test_a_log_of_what_was_acknowledged_and_of_an_unknown_append_is_right(tmp_path: Path) -> None:
    assert judged(tmp_path, RIGHT) == []


def test_an_unknown_append_may_be_missing(tmp_path: Path) -> None:
    assert judged(tmp_path, {0: [record(0, "a 0 1")]}, "? 0 1\n= 0 1 0\n? 0 2\n") == []


@pytest.mark.parametrize(
    ("first", "start"),
    [
        ([record(0, "a 0 1"), record(1, "a 0 2")], "lost: (0, b'a 0 4 ') of a"),
        ([*RIGHT[0], record(3, "a 0 4")], "doubled: b'a 0 4 '"),
        ([*RIGHT[0], record(3, "a 0 2")], "doubled: b'a 0 2 '"),
        ([*RIGHT[0], record(3, "a 0 3")], "refused: (0, b'a 0 3 ') of a"),
        ([*RIGHT[0], record(3, "a 0 5")], "nobody wrote transaction 3"),
        ([*RIGHT[0], record(3, "a 1 1")], "nobody wrote transaction 3"),
        ([record(0, "a 0 4"), record(1, "a 0 2"), record(2, "a 0 1")], "lost: (0, b'a 0 1 ')"),
    ],
)
def test_what_is_planted_is_found(tmp_path: Path, first: list[LogRecord], start: str) -> None:
    found = judged(tmp_path, {0: first, 1: RIGHT[1]})
    assert any(each.startswith(start) for each in found), found


def test_an_acknowledgement_behind_a_later_one_is_found(tmp_path: Path) -> None:
    journal = "? 0 1\n? 0 2\n= 0 2 1\n= 0 1 0\n"
    log = {0: [record(0, "a 0 1"), record(1, "a 0 2")]}
    (found,) = judged(tmp_path, log, journal)
    assert found.startswith("reordered: (0, b'a 0 1 ')")


def test_requests_are_known_by_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    own = bytes(range(16))
    path.write_text(f"? 0 {own.hex()}\n= 0 {own.hex()} 0\n")
    account = read_account(path, by_request=True)
    assert list(judge({0: [LogRecord(0, own, 0, 0, b"x")]}, [account])) == []
    other = LogRecord(0, bytes(16), 0, 0, b"x")
    assert len(list(judge({0: [other]}, [account]))) == 2


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("? 0 1\n= 0 1 ")
    assert read_account(path).unknown == 1


def test_replicas_that_differ_are_named_and_the_last_record_is_found_in_growing_files(
    tmp_path: Path,
) -> None:
    one = DIRECTORY / "storage-after-clients"
    assert read_replicas([one, one])[1] == []
    _, differences = read_replicas([one, DIRECTORY / "storage-partitions-added"])
    assert len(differences) == 2
    assert (last_held(one, 0), last_held(one, 1)) == (14, 254)
    assert last_held(DIRECTORY / "storage-empty", 0) == -1
    (tmp_path / "1").mkdir()
    (name,) = (one / "1").glob("*.seg")
    (tmp_path / "1" / name.name).write_bytes(name.read_bytes()[:-1])
    assert last_held(tmp_path, 1) == 253
