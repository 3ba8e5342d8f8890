"""`waltz outcome` against a running cluster."""

from __future__ import annotations

import struct

import pytest

import waltz
from tests.clusters import RunningCluster, run_tool

pytestmark = pytest.mark.processes


def test_what_became_of_an_append_can_be_asked_for_later(cluster: RunningCluster) -> None:
    where = ("--cluster", cluster.coordinator)
    appended = run_tool("append", *where, "--partition", "0", "--timeout", "0", "of a request")
    assert appended.code == 0, appended.err
    (sent,) = [
        columns.request_ids[-16:]
        for columns in read_all(cluster.coordinator)
        if columns.data[-1] == b"of a request"
    ]
    client, generation, partition, number = struct.unpack(">4i", sent)
    found = run_tool("outcome", *where, f"{client}:{generation}:{partition}:{number}")
    assert found.out == appended.out, found.err
    absent = run_tool("outcome", *where, "--json", f"{client}:{generation}:{partition}:999999")
    assert absent.json == {"partition": 0, "transaction_id": None}, absent.err
    after = ("--after", found.out.strip(), f"{client}:{generation}:{partition}:{number}")
    said = run_tool("outcome", *where, *after).out
    assert said == f"not in the log after transaction {found.out.strip()}, and never will be\n"
    assert run_tool("outcome", *where, "--json", *after).json["after"] == int(found.out)
    wrong = run_tool("outcome", *where, "1:2:3")
    assert "expected client:generation:partition:number" in wrong.err


@pytest.mark.parametrize("place", range(4))
def test_a_number_that_no_request_has_is_refused(place: int) -> None:
    """No client is opened for it, and none fails."""
    numbers = ["1"] * 4
    numbers[place] = str(2**31)
    said = run_tool("outcome", "--cluster", "127.0.0.1:1", ":".join(numbers))
    assert said.code == 2
    assert "32 bits each" in said.err


def read_all(coordinator: str) -> list[waltz.TransactionColumns]:
    with waltz.open_reader(coordinator) as reader:
        return [*reader.read(0, 0, reader.high_water_mark(0) + 1)]
