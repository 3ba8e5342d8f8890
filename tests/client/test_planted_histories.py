"""Mistakes that a competent person could make about histories: the tests find each of them.

Each is planted into the product, and the judge that has to find it is run as its own test runs it.
Simulated runs that restore their cluster find some of them, too: `proofs/bugs/history_bugs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from proofs.patches import Patch, patched
from tests.client import test_following_one_history as following
from tests.client.conftest import OpenEngine
from tests.client.sql_applications import APPLIED, new_engine
from tests.cluster import test_histories as histories
from waltz.client.databases.marked_callbacks import MarkedCallbacks
from waltz.client.partitions.application_shell import Application
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.cluster.histories import Histories
from waltz.connections.known_histories_shell import KnownHistories
from waltz.types import NOTHING

Judge = Callable[[OpenEngine], None]


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[OpenEngine]:
    """As `open_engine`, with SQLite only."""
    engines: list[sql.Engine] = []

    def open_one() -> sql.Engine:
        engines.append(new_engine(sql.make_url(f"sqlite:///{tmp_path / 'app.db'}")))
        return engines[-1]

    APPLIED.metadata.create_all(open_one())
    yield open_one
    for engine in engines:
        engine.dispose()


def _above(open_engine: OpenEngine) -> None:
    following.test_a_database_above_the_fork_is_refused_by_name(following.by_servers, open_engine)


def _surviving(open_engine: OpenEngine) -> None:
    following.test_a_client_that_lives_through_a_restore_is_refused_above_the_fork(
        following.by_servers, open_engine
    )


def _busy(open_engine: OpenEngine) -> None:
    following.test_a_client_that_lives_through_a_restore_follows_on_below_the_fork(
        following.by_servers, False, open_engine
    )


def _together(open_engine: OpenEngine) -> None:
    following.test_one_partition_above_the_fork_keeps_all_others_back(
        following.by_servers, open_engine
    )


def _moving(open_engine: OpenEngine) -> None:
    following.test_a_mark_that_moves_while_a_history_is_taken_over_is_looked_at_again(open_engine())


def _at_the_point(_: OpenEngine) -> None:
    histories.test_an_ancestor_may_go_on_below_its_end(histories.P0, histories.KEY, 10, False)


def _twice_restored(_: OpenEngine) -> None:
    histories.test_an_ancestor_may_go_on_below_its_end(histories.P1, histories.KEY, 3, False)


JUDGES: tuple[Judge, ...] = (
    *(_above, _surviving, _busy, _together),
    *(_moving, _at_the_point, _twice_restored),
)


def _names_only(check: Callable[..., None]) -> Callable[..., None]:
    def checking(self: Any, partition: Any, stored: Any, mark: Any = None, **words: Any) -> None:
        check(self, partition, stored, **words)

    return checking


def _one_too_late(check: Callable[..., None]) -> Callable[..., None]:
    def checking(self: Any, partition: Any, stored: Any, mark: Any = None, **words: Any) -> None:
        check(self, partition, stored, None if mark is None else mark - 1, **words)

    return checking


def _next_restore_only(check: Callable[..., None]) -> Callable[..., None]:
    def checking(self: Any, partition: Any, stored: Any, mark: Any = None, **words: Any) -> None:
        known = [self.cluster_key, *(each.history_id for each in self.restores)]
        after = known.index(stored) + 1 if stored in known else len(known)
        check(replace(self, restores=self.restores[:after]), partition, stored, mark, **words)

    return checking


def _applied_only(check: Callable[..., None]) -> Callable[..., None]:
    """What a partition was fed is not looked at."""

    def checking(self: Any, found: Any) -> None:
        self.application.check_history(found, NOTHING)

    return checking


def _unread(_: Callable[..., Any]) -> Callable[..., Any]:
    async def learning(self: Any, connection: Any, key: Any, otherwise: Any = None) -> None:
        self.current = self.current or Histories(key)

    return learning


def _not_taken_over(_: Callable[..., Any]) -> Callable[..., Any]:
    async def following_on(self: Any, found: Any, transactions: Any) -> None:
        self._taken_over = found.current

    return following_on


def _whatever_the_mark(keep: Callable[..., None]) -> Callable[..., None]:
    def keeping(self: Any, partition_id: Any, history: Any, before: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(
                self.table.update()
                .where(self.table.c.partition_id == partition_id)
                .values(history=str(history))
            )
        keep(self, partition_id, history, before)

    return keeping


def _blind(_: property) -> property:
    return property(lambda self: {})


MISTAKES = {
    "a consumer above the fork follows on": (Patch(Histories, "check", _names_only), _above),
    "a consumer may be one beyond the fork": (
        Patch(Histories, "check", _one_too_late),
        _at_the_point,
    ),
    "of several restores only the next one counts": (
        Patch(Histories, "check", _next_restore_only),
        _twice_restored,
    ),
    "a client that lives on does not compare what it was fed": (
        Patch(PartitionRunner, "check_history", _applied_only),
        _surviving,
    ),
    "a connection is used before its histories are known": (
        Patch(KnownHistories, "learn", _unread),
        _surviving,
    ),
    "a busy partition goes on without taking the history over": (
        Patch(Application, "_follow_on", _not_taken_over),
        _busy,
    ),
    "a history is taken over whatever the mark is": (
        Patch(MarkedCallbacks, "keep_client_history", _whatever_the_mark),
        _moving,
    ),
    "the other partitions of a database are not looked at": (
        Patch(MarkedCallbacks, "seen_high_water_marks", _blind),
        _together,
    ),
}


@pytest.mark.parametrize("judge", JUDGES)
def test_the_judges_find_nothing_without_a_mistake(judge: Judge, open_file: OpenEngine) -> None:
    judge(open_file)


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_found(name: str, open_file: OpenEngine) -> None:
    patch, judge = MISTAKES[name]
    with patched([patch]), pytest.raises((AssertionError, pytest.fail.Exception)):
        judge(open_file)
