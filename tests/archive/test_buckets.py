"""Archives in a bucket on a bad day: racing writers, lost answers, throttling, half lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import ThreadingHTTPServer
from itertools import chain
from threading import Thread
from urllib.parse import urlsplit

import pytest

from tests.archive.archives import KEY, NOW
from tests.archive.listed_log import ListedLog
from tests.archive.test_archiver_shell import expect_equal, run
from tests.archive.test_commits import race
from tests.buckets import BadDay, BadStore, bad_store
from tests.shares import one_in
from waltz.archive.archive import read_archive
from waltz.archive.archive_target import open_target
from waltz.archive.archive_verification import verify
from waltz.archive.commits import commit, create_archive, orphans
from waltz.archive.manifest import Manifest, object_path
from waltz.errors import (
    ArchiveUnreachableError,
    ConfigurationError,
    VersionConflictError,
)


@pytest.fixture
def bad_day(
    object_store: str, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BadDay]:
    """The bucket behind a store whose day a test decides."""
    with bad_store(object_store) as (address, day):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield day


@pytest.mark.parametrize("count", [10, pytest.param(250, marks=pytest.mark.long)])
def test_writers_that_race_for_a_bucket_make_one_history(bucket_url: str, count: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: race(bucket_url, each, count), "abcd"))
    assert sorted(chain.from_iterable(found)) == list(range(4 * count))
    target = open_target(bucket_url)
    assert read_archive(target).contents.number == 4 * count - 1
    assert verify(target).verdict is True


def test_archivers_at_once_archive_one_log(bucket_url: str) -> None:
    log = ListedLog({0: 120, 1: 30})
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda _: run(log, open_target(bucket_url)), range(2)))
    assert all(each.is_healthy for each in ends)
    target = open_target(bucket_url)
    expect_equal(read_archive(target), log)
    assert verify(target, log=log, replicas=True).verdict is True


@pytest.mark.parametrize("lost", one_in(2, [1, 3, 4, 9]))
def test_a_put_whose_answer_is_lost_finds_its_own_object(
    bad_day: BadDay, bucket_url: str, lost: int
) -> None:
    """The library asks again, and is told that the object is there: it is the writer's own."""
    log = ListedLog({0: 40})
    bad_day.unanswered_puts = lost
    target = open_target(bucket_url, attempts_max=4)
    for _ in range(lost + 2):
        with suppress(ArchiveUnreachableError):  # more answers were lost than it asks again
            if run(log, target).is_healthy:
                break
    expect_equal(read_archive(target), log)
    assert bad_day.unanswered_puts == 0
    found = verify(target, log=log, replicas=True)
    assert (found.verdict, found.findings) == (True, [])


def test_a_store_that_ignores_the_condition_of_puts_is_refused_before_anything_is_written(
    bad_day: BadDay, bucket_url: str
) -> None:
    bad_day.is_unconditional = True
    target = open_target(bucket_url)
    for write in (
        lambda: target.put_if_absent("a", b"1"),
        lambda: target.put_all_if_absent([("a", b"1"), ("b", b"2")]),
        lambda: create_archive(target, KEY),
    ):
        with pytest.raises(ConfigurationError, match=r"ignores If-None-Match: ") as refused:
            write()
        assert " Only the object that showed this was written, and removed." in str(refused.value)
        assert list(target.list("")) == []
    bad_day.is_unconditional = False
    assert target.put_if_absent("a", b"1")
    bad_day.is_unconditional = True
    assert target.put_if_absent("a", b"2"), "it was looked at once, when the first object was made"


def test_a_store_is_looked_at_with_four_requests_and_nothing_is_left(
    bad_day: BadDay, bucket_url: str
) -> None:
    target = open_target(bucket_url)
    target.put_if_absent("a", b"1")
    assert bad_day.requests == ["PUT", "PUT", "GET", "POST", "PUT"]
    target.put_all_if_absent([("b", b"1")])
    assert bad_day.requests[5:] == ["PUT"]
    assert [each.path for each in target.list("")] == ["a", "b"]
    read = open_target(bucket_url)
    read.get("a", 1)
    assert bad_day.requests[-1] == "GET", "readers make nothing"


@pytest.mark.parametrize("lost", [1, 2])
def test_a_store_that_is_looked_at_while_answers_are_lost_is_not_slandered(
    bad_day: BadDay, bucket_url: str, lost: int
) -> None:
    bad_day.unanswered_puts = lost
    target = open_target(bucket_url, attempts_max=4)
    assert target.put_if_absent("a", b"1")
    assert target.get("a", 1) == b"1"


class UndeletingStore(BadStore):
    """Answers deletions as a store does whose credentials may not delete."""

    day = BadDay()

    def handle_any(self) -> None:
        if self.command == "DELETE":
            self.answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        elif self.command == "POST" and "delete" in self.path:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            errors = [
                b"<Error><Key>%s</Key><Code>AccessDenied</Code><Message>no</Message></Error>" % key
                for key in re.findall(b"<Key>(.*?)</Key>", asked)
            ]
            self.answer(200, {}, b"<DeleteResult>%s</DeleteResult>" % b"".join(errors))
        else:
            super().handle_any()


def test_credentials_that_may_not_delete_archive_and_keep_what_would_be_swept(
    object_store: str, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handler(UndeletingStore):
        upstream = urlsplit(object_store).netloc

    log = ListedLog({0: 40})
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        target = open_target(bucket_url, attempts_max=2)
        before = create_archive(target, log.cluster_key).contents
        replaced = object_path(0, 0, 9, "0" * 16)
        target.put(replaced, b"replaced by a larger one long ago")
        commit(target, before, Manifest(0, None, NOW, "writer", removed={replaced: 1}))
        state = run(log, target)
        assert (state.is_healthy, state.trouble, state.swept) == (True, None, 0)
        expect_equal(read_archive(target), log)
        assert target.exists(replaced)
        with pytest.raises(ConfigurationError, match=r"refuses to delete .* credentials"):
            target.delete(replaced)
        server.shutdown()


def test_a_commit_whose_answer_is_lost_is_one_commit(bad_day: BadDay, bucket_url: str) -> None:
    target = open_target(bucket_url, attempts_max=3)
    before = create_archive(target, KEY).contents
    for number in range(6):
        bad_day.unanswered_puts = 1
        change = Manifest(0, None, NOW, f"writer-{number}")
        try:
            after = commit(target, before, change)
        except ArchiveUnreachableError:
            # The outcome is unknown, and the next opening tells.
            after = read_archive(target).contents
        assert after.number == number
        with pytest.raises(VersionConflictError):
            commit(target, before, Manifest(0, None, NOW, f"other-{number}"))
        assert commit(target, before, change).number == number, "and is found to be its own"
        before = after


def test_a_throttled_store_is_asked_again_and_then_given_up(
    bad_day: BadDay, bucket_url: str
) -> None:
    log = ListedLog({0: 40})
    target = open_target(bucket_url, attempts_max=3)
    bad_day.throttled = 2
    assert run(log, target).is_healthy
    assert bad_day.throttled == 0
    log.marks[0] = 60  # type: ignore[index, assignment]
    bad_day.throttled = 10_000
    with pytest.raises(ArchiveUnreachableError, match="503 Service Unavailable"):
        run(log, target)
    bad_day.throttled = 0
    assert read_archive(target).end(0) == 41
    assert run(log, target).is_healthy
    expect_equal(read_archive(target), log)


def test_half_a_listing_is_no_listing(bad_day: BadDay, bucket_url: str) -> None:
    """What is swept is decided by a listing: names that are missing from it must not be taken for
    objects that are not there, nor an object for one that nobody names."""
    target = open_target(bucket_url, attempts_max=3)
    names = [f"log/0/{number:04d}" for number in range(30)]
    for name in names:
        target.put(name, b"x")
    bad_day.halved_lists = 1
    with pytest.raises(ArchiveUnreachableError, match="failed to list log"):
        list(target.list("log"))
    assert [each.path for each in target.list("log")] == names


@pytest.mark.long
def test_a_listing_that_ends_before_its_last_page_is_told(bad_day: BadDay, bucket_url: str) -> None:
    target = open_target(bucket_url, attempts_max=2)
    contents = create_archive(target, KEY).contents
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: target.put(f"log/0/{n:04d}", b"x"), range(1_001)))
    assert len(list(target.list("log"))) == 1_001
    bad_day.dropped_pages = True
    with pytest.raises(ArchiveUnreachableError, match="failed to list log"):
        list(target.list("log"))
    with pytest.raises(ArchiveUnreachableError):
        list(orphans(target, contents, NOW * 2))
    with pytest.raises(ArchiveUnreachableError):
        verify(target)
