"""The place of an archive: a directory and a bucket behave alike, and errors say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread

import pytest

from tests.archive.archives import directory_target
from waltz.archive.archive_target import Target, open_target
from waltz.errors import (
    ArchiveDamagedError,
    ArchiveUnreachableError,
    ConfigurationError,
    NotFoundError,
)


@pytest.fixture(params=["directory", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    if request.param == "directory":
        yield directory_target(tmp_path / "a")
        return
    yield request.getfixturevalue("bucket")


def test_an_object_is_made_once_and_read_back(target: Target) -> None:
    assert target.put_if_absent("log/0/a.wal", b"0123456789") is True
    assert target.put_if_absent("log/0/a.wal", b"other") is False
    assert target.get("log/0/a.wal", 10) == b"0123456789"
    assert target.get_range("log/0/a.wal", 3, 4) == b"3456"
    assert target.get_range("log/0/a.wal", 8, 100) == b"89"
    assert target.get_range("log/0/a.wal", 10, 5) == b""
    assert target.get_range("log/0/a.wal", 99, 5) == b""
    with pytest.raises(ArchiveDamagedError, match="at most 9"):
        target.get("log/0/a.wal", 9)
    target.put("log/0/a.wal", b"replaced")
    assert target.get("log/0/a.wal", 10) == b"replaced"
    assert target.exists("log/0/a.wal")
    target.delete("log/0/a.wal")
    target.delete("log/0/a.wal")
    assert not target.exists("log/0/a.wal")
    with pytest.raises(NotFoundError):
        target.get("b", 1)
    with pytest.raises(NotFoundError):
        target.get_range("b", 0, 1)


def test_names_are_listed_below_a_directory_and_after_a_name(target: Target) -> None:
    for name in ("log/0/a", "log/0/b", "log/1/a", "logs/x"):
        target.put_if_absent(name, name.encode())
    assert sorted(each.path for each in target.list("log")) == ["log/0/a", "log/0/b", "log/1/a"]
    assert sorted(each.path for each in target.list("log", "log/0/a")) == ["log/0/b", "log/1/a"]
    assert list(target.list("nothing")) == []
    (found,) = target.list("logs")
    assert found.byte_count == 6
    assert found.changed_at > 1_600_000_000_000


@pytest.mark.parametrize(
    "url",
    ["", "/tmp/a", "http://host/a", "file://", "file:///", "file://host/a", "s3://", "s3:///a"],
)
def test_another_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"file:///directory|s3://bucket/prefix"):
        open_target(url)


def test_a_secret_in_a_url_is_refused_and_not_shown() -> None:
    for url in ("s3://key:secret@bucket/a", "s3://bucket/a?secret=secret"):
        with pytest.raises(ConfigurationError, match="in the environment") as caught:
            open_target(url)
        assert "secret" not in str(caught.value)


def test_a_directory_is_made_only_if_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is it mounted"):
        open_target(f"file://{tmp_path}/a%20b")
    open_target(f"file://{tmp_path}/a%20b", create=True)
    assert (tmp_path / "a b").stat().st_mode & 0o777 == 0o700


def test_a_directory_whose_parent_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no directory {tmp_path}/a: is it"):
        directory_target(tmp_path / "a" / "b")


def test_openers_that_race_all_find_the_directory_that_one_of_them_makes(tmp_path: Path) -> None:
    together = Barrier(4)

    def opened(number: int) -> str:
        together.wait()
        return open_target(f"file://{tmp_path}/{number}", create=True).url

    with ThreadPoolExecutor(4) as pool:
        for number in range(200):
            assert len(set(pool.map(opened, [number] * 4))) == 1


def test_nothing_is_left_in_staging(tmp_path: Path) -> None:
    target = directory_target(tmp_path / "a")
    target.put_if_absent("x", b"1")
    target.put_if_absent("x", b"2")
    target.put("x", b"3")
    assert list((tmp_path / "a" / "staging").iterdir()) == []
    assert (tmp_path / "a" / "x").stat().st_mode & 0o777 == 0o600


class Throttling(BaseHTTPRequestHandler):
    """Answers with 503 a number of times, then with an object."""

    refusals = 0
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.asked <= self.refusals:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.send_header("Last-Modified", "Sat, 21 Nov 2026 10:00:00 GMT")
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(b"found")

    def log_message(self, *arguments: object) -> None: ...


@pytest.mark.parametrize("refusals", [0, 2, 3, 1000])
def test_a_throttled_request_is_repeated_with_a_bound(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    class Handler(Throttling):
        asked = 0

    Handler.refusals = refusals
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        target = open_target("s3://bucket/prefix", attempts_max=3)
        if refusals < 3:
            assert target.get("x", 10) == b"found"
            assert Handler.asked == refusals + 1
        else:
            with pytest.raises(ArchiveUnreachableError, match="look at the endpoint"):
                target.get("x", 10)
            assert Handler.asked == 3
        server.shutdown()


def test_a_bucket_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    target = open_target("s3://bucket/prefix", attempts_max=2)
    with pytest.raises(ArchiveUnreachableError, match="look at the endpoint"):
        target.get("x", 1)
