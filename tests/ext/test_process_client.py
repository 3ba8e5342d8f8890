"""The client of a Django process: threads share one, and a forked process opens its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from threading import Event, Thread

import pytest

import waltz
from tests.client.fake_cluster import served_in_thread
from tests.client.telling_servers import TellingServer, topology_of
from tests.client.test_forks import in_child
from tests.clusters import ROOT, wait_until
from tests.ext import django_project  # noqa: F401
from waltz.client.applying.callbacks import NoCallbacks
from waltz.errors import ConfigurationError, UnavailableError
from waltz.ext.django import process_client
from waltz.ext.django.process_client import ProcessClient, WaltzSettings, settings_of_waltz


@pytest.fixture
def server() -> Iterator[TellingServer]:
    server = TellingServer(1)
    with served_in_thread(server):
        server.topology = topology_of({0: (server.address, 1)})
        yield server


def process_of(server: TellingServer, opened: list[int] | None = None) -> ProcessClient:
    def open_client() -> waltz.WaltzClient:
        if opened is not None:
            opened.append(1)
        return waltz.open_client(
            f"waltz://{server.address}", NoCallbacks(), connection_seconds_max=0.2
        )

    return ProcessClient(open_client)


def test_threads_that_ask_at_once_get_one_client(server: TellingServer) -> None:
    opened, found = list[int](), list[waltz.WaltzClient]()
    process = process_of(server, opened)
    assert opened == []
    threads = [Thread(target=lambda: found.append(process.client())) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(opened) == len(set(map(id, found))) == 1
    process.close()
    process.close()
    assert found[0].is_closed
    assert process.client() is not found[0], "the next use opens one"
    process.close()


def test_a_forked_process_opens_its_own_and_leaves_the_parents_alone(
    server: TellingServer,
) -> None:
    process = process_of(server)
    assert process.client().append(0, b"parent") == 0
    busy = process._lock
    busy.acquire()  # as another thread of the parent may have it, at the fork

    def work() -> None:
        assert process.client().append(0, b"child") == 1
        process.close()

    assert in_child(work) == ""
    busy.release()
    assert process.client().append(0, b"parent again") == 2
    process.close()


def test_a_cluster_that_is_away_is_not_waited_for_by_every_caller(
    server: TellingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, server.topology = server.topology, None
    monkeypatch.setattr(process_client, "REOPEN_SECONDS", 3_600.0)
    opened = list[int]()
    process = process_of(server, opened)
    with pytest.raises(UnavailableError):
        process.client()
    for _ in range(3):
        with pytest.raises(UnavailableError, match="could not be opened just now"):
            process.client()
    assert len(opened) == 1
    server.topology = topology
    monkeypatch.setattr(process_client, "REOPEN_SECONDS", 0.0)
    assert process.client().append(0, b"x") == 0
    process.close()


def test_a_thread_waits_a_bounded_time_for_another_that_opens(
    server: TellingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_client, "OPENING_SECONDS_MAX", 0.01)
    is_opening, may_open = Event(), Event()

    def open_late() -> waltz.WaltzClient:
        is_opening.set()
        may_open.wait()
        return waltz.open_client(f"waltz://{server.address}", NoCallbacks())

    process = ProcessClient(open_late)
    thread = Thread(target=process.client)
    thread.start()
    is_opening.wait()
    with pytest.raises(UnavailableError, match="another thread has been opening") as raised:
        process.client()
    assert not raised.value.may_be_written
    may_open.set()
    thread.join()
    process.close()


def test_a_client_that_has_ended_by_itself_is_closed_and_replaced(
    server: TellingServer, caplog: pytest.LogCaptureFixture
) -> None:
    process = process_of(server)
    first = process.client()
    first._thread.call(first._there.close())  # its thread is still there
    assert first.is_closed
    assert first._thread._thread.is_alive()
    second = process.client()
    assert second is not first
    assert not first._thread._thread.is_alive()
    assert "client_replaced error=" in caplog.text
    assert second.append(0, b"x") == 0
    process.close()


def test_a_process_that_closes_nothing_ends(server: TellingServer) -> None:
    program = f"""
from django.conf import settings
settings.configure(WALTZ={{"CLUSTER": "waltz://{server.address}"}}, DATABASES={{"default": {{}}}})
import waltz.ext.django as log
print(log.client().append(0, b"x"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    wait_until(lambda: not server.connections, "the server still has its connections")


def test_settings_are_read_and_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.conf import settings
    from django.test.utils import override_settings

    with override_settings(WALTZ={"CLUSTER": "a:1", "OPTIONS": {"name": "x"}}):
        assert settings_of_waltz() == WaltzSettings("a:1", options={"name": "x"})
    for wrong, said in (
        (None, "has no CLUSTER"),
        ({}, "has no CLUSTER"),
        ({"CLUSTER": "a:1", "CALLBACK": "x"}, "unknown key 'CALLBACK'"),
        ({"CLUSTER": "a:1", "MARKS": "other"}, "names the database 'other' in MARKS"),
    ):
        with override_settings(WALTZ=wrong), pytest.raises(ConfigurationError, match=said):
            settings_of_waltz()
    monkeypatch.setattr(settings, "DATABASES", {"default": {"AUTOCOMMIT": False}})
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT False"):
        settings_of_waltz()
