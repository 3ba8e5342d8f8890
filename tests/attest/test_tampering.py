"""Any byte of log and archive that is changed is found, with the first transaction that differs."""

from __future__ import annotations

from random import Random

import pytest

from tests.attest.tampering import Change, Tampered, changes, judge, leaf, left_in
from waltz.attest import comparison

PORTIONS = 40
"""Parts of the test of every byte; each takes about half a minute."""


@pytest.fixture(scope="module")
def tampered() -> Tampered:
    return Tampered()


def test_there_are_200_000_bytes(tampered: Tampered) -> None:
    assert len(tampered.places()) > 200_000


def test_what_nobody_has_changed_is_well(tampered: Tampered) -> None:
    path = "attest/0/checkpoint"
    findings = tampered.changed(Change(path, 0, tampered.read(path)[0]))
    assert [each.is_well for each in findings] == [True]
    findings = tampered.changed(Change(None, 200, tampered.log[200]))
    assert [each.is_well for each in findings] == [True]


def test_changed_bytes_are_found_with_the_first_transaction_that_differs(
    tampered: Tampered,
) -> None:
    by_path: dict[str | None, list[Change]] = {}
    for change in changes(tampered, "sample"):
        by_path.setdefault(change.path, []).append(change)
    assert len(by_path) == 7
    for some in by_path.values():
        for change in Random(5).sample(some, 20):
            judge(tampered, change)


@pytest.mark.long
@pytest.mark.parametrize("portion", range(PORTIONS))
def test_every_changed_byte_is_found(tampered: Tampered, portion: int) -> None:
    count = 0
    for number, change in enumerate(changes(tampered, "all")):
        if number % PORTIONS == portion:
            judge(tampered, change)
            count += 1
    assert count > 5_000


def test_the_oracle_reads_what_was_archived(tampered: Tampered) -> None:
    (path,) = (each for each in tampered.target.objects if each.endswith(".wal"))
    assert [*left_in(tampered.footerless(path), 0, 7)] == tampered.oracle.leaves
    assert tampered.read("attest/0/tile/0/000.p/105") == b"".join(tampered.oracle.leaves)
    assert leaf(tampered.log[128:1208]) != tampered.oracle.leaves[0]


def test_a_comparison_that_names_the_next_transaction_is_found(
    tampered: Tampered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted mistake: the leaves of a batch are counted from 1."""
    right = comparison._difference

    def off_by_one(tree, index, *others):  # type: ignore[no-untyped-def]
        return right(tree, index + 1, *others)

    monkeypatch.setattr(comparison, "_difference", off_by_one)
    change = Change(None, 200, tampered.log[200] ^ 1)
    judge(tampered, change)  # the storage node has found that one
    (path,) = (each for each in tampered.target.objects if "/tile/0/" in each)
    with pytest.raises(AssertionError):
        judge(tampered, Change(path, 64, tampered.read(path)[64] ^ 1))
