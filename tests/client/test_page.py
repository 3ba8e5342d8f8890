"""docs/guarantees.md has every error and every end, and says of each what the code says."""

from __future__ import annotations

import re

import waltz
from tests.client.applications import Recorder
from tests.clusters import ROOT
from waltz.testing import InMemoryCluster

PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_error_is_there_with_what_is_known_of_the_transaction() -> None:
    """UA-33."""
    told = {re.findall(r"`(\w+)`", row[0])[0]: row[2] for row in rows("Errors")}
    public = {
        name: each
        for name in waltz.__all__
        if isinstance(each := getattr(waltz, name), type) and issubclass(each, waltz.WaltzError)
    }
    del public["WaltzError"]
    assert told == {name: "yes" if e.may_be_written else "no" for name, e in public.items()}


def test_every_end_of_a_context_is_there() -> None:
    ends = [re.findall(r"`(\w+)", row[0])[0] for row in rows("The ends of a context")]
    assert sorted(set(ends)) == ["on_completion", "on_exception", "on_expiration"]
    assert all(hasattr(waltz.TransactionContext, end) for end in ends)


def test_every_kind_of_lock_is_there() -> None:
    kinds = {row[0] for row in rows("Locks")}
    verbs = dir(waltz.TransactionBuilder)
    assert kinds == {found[1] for v in verbs if (found := re.fullmatch(r"set_(\w+)_locks", v))}


def test_the_question_for_an_outcome_works_as_it_stands_there() -> None:
    """UA-30."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        context = waltz.PlainAppend(0, b"x")
        client.submit(context)
        client.flush()
        names: dict[str, object] = {"client": client, "context": context}
        exec(program, names)
    assert names["at"] == 0
