"""The memory of a witness, over restarts and between threads."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.attest.test_witness_judge import FORKED, KEY, checkpoint, head, request
from waltz.attest.witness_judge import NOTHING_SEEN, Cosign, Refusal
from waltz.cli.witness_heads import WitnessHeads
from waltz.errors import ConfigurationError

ORIGIN = "waltz/test/0"
KEYS = (KEY.public_key,)


def test_what_was_cosigned_is_known_after_a_restart(tmp_path: Path) -> None:
    heads = WitnessHeads(tmp_path / "heads")
    assert heads.head(ORIGIN) == NOTHING_SEEN
    assert heads.decide(request(0, 20), ORIGIN, KEYS) == Cosign(checkpoint(20))
    heads.close()
    heads = WitnessHeads(tmp_path / "heads")
    assert heads.head(ORIGIN) == head(20)
    assert isinstance(heads.decide(request(20, 30, FORKED), ORIGIN, KEYS), Refusal)
    assert heads.head(ORIGIN) == head(20)
    assert heads.decide(request(20, 30), ORIGIN, KEYS) == Cosign(checkpoint(30))
    heads.close()


def test_logs_are_kept_apart(tmp_path: Path) -> None:
    heads = WitnessHeads(tmp_path / "heads")
    assert isinstance(heads.decide(request(0, 20), ORIGIN, KEYS), Cosign)
    assert heads.head("waltz/test/1") == NOTHING_SEEN
    heads.close()


def test_of_many_requests_at_once_one_is_cosigned(tmp_path: Path) -> None:
    """Two processes share the file; each asks from nothing, with one of two trees that part."""
    memories = [WitnessHeads(tmp_path / "heads") for _ in range(2)]

    def ask(number: int) -> bool:
        leaves = FORKED if number % 3 else None
        asked = request(0, 20, FORKED) if leaves else request(0, 20)
        return isinstance(memories[number % 2].decide(asked, ORIGIN, KEYS), Cosign)

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, range(40))) == 1
    for each in memories:
        each.close()


def test_a_file_that_is_no_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(ConfigurationError, match="cannot be used as a witness's memory"):
        WitnessHeads(path)


def test_a_row_that_is_no_head_is_believed_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "heads"
    heads = WitnessHeads(path)
    heads.decide(request(0, 20), ORIGIN, KEYS)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE heads SET root = x'00'")
    with pytest.raises(sqlite3.DatabaseError, match="not a head"):
        heads.decide(request(20, 30), ORIGIN, KEYS)
    heads.close()
