"""Both event loops, networks with and without TLS, and one ZooKeeper for all tests, started where a
test asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from tests.tls_files import TlsFiles
from tests.zookeepers import RunningZooKeeper, running_zookeeper
from waltz.system.tcp_network import RealNetwork
from waltz.types import Plain, TlsSettings

Run = Callable[[Coroutine[Any, Any, None]], None]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a story on one of the event loops."""

    def run(story: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(story)

    return run


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plain", "tls", "self-signed"])
def network(request: pytest.FixtureRequest, tls_files: TlsFiles) -> RealNetwork:
    """A process that speaks to itself: plain, mutual TLS, TLS as without any configuration."""
    settings = {
        "plain": TlsSettings(),
        "tls": tls_files.peer(),
        "self-signed": TlsSettings(plain=Plain.NEVER),
    }
    return RealNetwork(settings[request.param])


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running
