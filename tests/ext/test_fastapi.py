"""WorkerClient: when the client of a worker is open, and what a request is told while it is not.

Annotations are evaluated here: FastAPI reads those of routes, which name what is local.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, Request

import waltz
from tests.client.fake_cluster import served_in_thread, until
from tests.client.telling_servers import TellingServer, topology_of
from tests.client.test_token_middleware_shell import ask
from waltz.client.applying.callbacks import NoCallbacks
from waltz.errors import ClientClosedError, ConfigurationError, UnavailableError
from waltz.ext.fastapi import WorkerClient
from waltz.ext.unfinished import UNFINISHED


@pytest.fixture
def server() -> Iterator[TellingServer]:
    server = TellingServer(1)
    with served_in_thread(server):
        server.topology = topology_of({0: (server.address, 1)})
        yield server


def worker(server: TellingServer, **options: Any) -> WorkerClient:
    address = f"waltz://{server.address}"
    return WorkerClient(
        lambda: waltz.open_async_client(address, NoCallbacks(), connection_seconds_max=0.2),
        **options,
    )


def site(log: WorkerClient, **options: Any) -> FastAPI:
    app = FastAPI(**{"lifespan": log.lifespan} | options)
    log.install(app, token_wait_seconds=60)

    @app.post("/add")
    async def add(
        request: Request, client: Annotated[waltz.AsyncWaltzClient, Depends(log.client)]
    ) -> int:
        number = await client.append(0, b"x")
        waltz.give_token(request.scope, client.token({0: number}))
        return number

    @app.get("/fail/{kind}")
    async def fail(kind: str) -> None:
        raise {"away": UnavailableError, "closed": ClientClosedError}[kind]("of a server's address")

    return app


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(in_time())


async def health(app: FastAPI) -> tuple[int, dict[str, Any]]:
    status, _, text = await ask(app, "/health")
    return status, json.loads(text)


def test_a_worker_has_a_client_from_its_start_to_its_end(server: TellingServer) -> None:
    async def work() -> None:
        log = worker(server)
        app = site(log)
        assert server.accepted == 0, "making it opens nothing"
        for number in (0, 1):  # a process may run its application twice, as tests do
            async with app.router.lifespan_context(app):
                status, headers, text = await ask(app, "/add", method="POST")
                assert (status, text) == (200, str(number))
                client = await log.client()
                await client.wait_until_applied()
                assert (await ask(app, "/health", headers["waltz-token"]))[0] == 200
                assert await health(app) == (
                    200,
                    {
                        "state": "open",
                        "connected_servers": 1,
                        "unconnected_seconds": 0.0,
                        "partitions": {
                            "0": {
                                "mounted": True,
                                "applied": number,
                                "known": number,
                                "blocked_seconds": None,
                            }
                        },
                    },
                )
            assert client.is_closed
        assert (await ask(app, "/health"))[0] == 503

    run(work)


def test_an_application_may_have_a_lifespan_of_its_own(server: TellingServer) -> None:
    async def work() -> None:
        log, story = worker(server), list[str]()

        @asynccontextmanager
        async def own(app: FastAPI) -> AsyncGenerator[None, None]:
            story.append("first")
            async with log.lifespan(app):
                assert not (await log.client()).is_closed
                with pytest.raises(RuntimeError, match="enter its lifespan once"):
                    await log.lifespan(app).__aenter__()
                yield
            story.append("last")

        app = site(log, lifespan=own)
        async with app.router.lifespan_context(app):
            assert (await ask(app, "/add", method="POST"))[0] == 200
        assert story == ["first", "last"]

    run(work)


def test_a_worker_that_starts_while_the_cluster_is_away_answers_until_it_is_back(
    server: TellingServer,
) -> None:
    async def work() -> None:
        topology, server.topology = server.topology, None
        log = worker(server, wait_seconds=0.05)
        app = site(log)
        async with app.router.lifespan_context(app):
            status, headers, text = await ask(app, "/add", method="POST")
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(text) == {"detail": UNFINISHED}
            token = str(waltz.ConsistencyToken.of(topology_key(topology), {0: 0}))
            assert (await ask(app, "/health", token))[0] == 503, "nobody knows"
            await until(lambda: log.health()["error"] is not None)
            status, known = await health(app)
            assert (status, known["state"], known["unconnected_seconds"]) == (503, "opening", None)
            assert "ConnectionFailedError" in known["error"]
            server.topology = topology
            await until(lambda: log.health()["state"] == "open")
            await until(lambda: log.health()["connected_servers"] == 1)
            assert (await ask(app, "/add", method="POST"))[0] == 200

    run(work)


def topology_key(topology: Any) -> Any:
    return topology.cluster_key


def test_a_request_waits_no_longer_for_a_cluster_that_has_gone(server: TellingServer) -> None:
    async def work() -> None:
        log = worker(server, wait_seconds=0.05)
        app = site(log)
        async with app.router.lifespan_context(app):
            await log.client()
            await until(lambda: log.health()["unconnected_seconds"] == 0.0)
            stopping = asyncio.run_coroutine_threadsafe(server.stop(), server_loop(server))
            await asyncio.wrap_future(stopping)
            client = log._client
            assert client is not None
            await until(lambda: not client.connected_servers)
            assert (await ask(app, "/add", method="POST"))[0] == 503
            status, known = await health(app)
            assert (status, known["state"], known["connected_servers"]) == (503, "open", 0)
            assert known["unconnected_seconds"] is not None

    run(work)


def server_loop(server: TellingServer) -> asyncio.AbstractEventLoop:
    listener: Any = server._listener
    loop: asyncio.AbstractEventLoop = listener._server.get_loop()
    return loop


def test_a_call_that_cannot_reach_the_log_is_answered_and_tells_no_address(
    server: TellingServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        app = site(worker(server))
        for kind in ("away", "closed"):
            status, headers, text = await ask(app, f"/fail/{kind}")
            assert (status, headers["retry-after"], text) == (503, "1", f"{UNFINISHED}\n")

    run(work)
    assert "request_unfinished path=/fail/away error=UnavailableError" in caplog.text


@pytest.mark.parametrize("error", [ConfigurationError("no"), ValueError("no")])
def test_what_waiting_does_not_help_with_keeps_the_worker_from_starting(error: Exception) -> None:
    async def work() -> None:
        def refuse() -> waltz.AsyncWaltzClient:
            raise error

        log = WorkerClient(refuse)
        app = site(log)
        with pytest.raises(type(error), match="no"):
            async with app.router.lifespan_context(app):
                pytest.fail("it has started")
        assert log.health()["state"] == "ended"

    run(work)


def test_a_client_that_has_ended_is_not_said_to_be_open(server: TellingServer) -> None:
    async def work() -> None:
        log = worker(server, wait_seconds=0.0)
        app = site(log)
        async with app.router.lifespan_context(app):
            await until(lambda: log._client is not None)
            client = log._client
            assert client is not None
            log._wait_seconds = 3_600.0
            await client.close()
            status, known = await health(app)
            assert (status, known["state"]) == (503, "ended")
            assert (await ask(app, "/add", method="POST"))[0] == 503, "there is nothing to wait for"

    run(work)
