"""The choice of the transactions that come into a post."""

from __future__ import annotations

import json
import struct

import numpy as np

from waltz import TransactionColumns
from waltz.bridge.webhook_choice import Choice, Wanted
from waltz.types import TransactionId


def columns(data: list[bytes], headers: list[int], first: int = 100) -> TransactionColumns:
    ids = b"".join(struct.pack(">4i", 1, 2, 3, each) for each in range(len(data)))
    return TransactionColumns(TransactionId(first), ids, np.array(headers, np.int32), data)


RUN = columns([b"a", b"b", b"c", b"d", b"e"], [1, 2, 1, 2, 3])


def ids(found: Wanted) -> list[int]:
    return [json.loads(each)["transaction_id"] for each in found.items]


def choice(count: int = 10, size: int = 10_000, only: frozenset[int] | None = None) -> Choice:
    return Choice(count, size, only, as_json=False)


def test_a_post_has_at_most_so_many_from_where_it_begins() -> None:
    found = choice().wanted(3, RUN, 101, 2)
    assert (ids(found), found.first_posted, found.last_posted, found.last) == (
        [101, 102],
        101,
        102,
        102,
    )
    assert json.loads(found.items[0])["request_id"]["sequence_number"] == 1


def test_a_filter_passes_over_other_headers_up_to_the_end() -> None:
    found = choice(only=frozenset({2})).wanted(3, RUN, 100, 10)
    assert (ids(found), found.first_posted, found.last_posted, found.last) == (
        [101, 103],
        101,
        103,
        104,
    )
    found = choice(only=frozenset({2})).wanted(3, RUN, 100, 1)
    assert (ids(found), found.last) == ([101], 102), "what is left out after it is done with"
    found = choice(only=frozenset({9})).wanted(3, RUN, 102, 10)
    assert (ids(found), found.last) == ([], 104)


def test_a_post_has_at_most_so_many_bytes_unless_one_alone_has_more() -> None:
    run = columns([b"x" * 700] * 3 + [b"y" * 9_000], [0] * 4)
    one = len(choice().wanted(3, run, 100, 1).items[0])
    found = choice(size=2 * one + 4).wanted(3, run, 100, 10)
    assert ids(found) == [100, 101]
    assert sum(map(len, found.items)) + 3 <= 2 * one + 4
    assert ids(choice(size=2 * one + 1).wanted(3, run, 100, 10)) == [100]
    assert ids(choice(size=1_024).wanted(3, run, 103, 10)) == [103]
