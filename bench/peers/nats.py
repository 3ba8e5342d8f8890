"""NATS JetStream: a stream with three replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

from bench.peers.peer import (
    Load,
    Peer,
    UnavailableHereError,
    closed_loop,
    free_ports,
    program,
    wait_for,
)

NODES = 3
CREATE_SECONDS_MAX = 5.0
PUBLISH_SECONDS_MAX = 30.0
BATCHED_OUTSTANDING = 800


class Nats(Peer):
    name = "NATS JetStream, 3 replicas"
    durability = "in the memory of a majority of three nodes, synced every two minutes: UNSYNCED"
    driver = "Python, nats-py"
    batching = f"has none: {BATCHED_OUTSTANDING} outstanding"

    def __init__(self) -> None:
        super().__init__()
        self._ports: list[int] = []

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        try:
            import nats  # noqa: F401
        except ModuleNotFoundError:
            raise UnavailableHereError("no nats: pip install nats-py") from None
        server = program("nats-server", "nats-server")
        ports = free_ports(3 * NODES)
        self._ports, routes, monitors = ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES :]
        log = directory / "log"
        with ExitStack() as stack:
            for number in range(NODES):
                file = directory / f"n{number}.conf"
                urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
                file.write_text(
                    f"server_name: n{number}\nhost: 127.0.0.1\nport: {self._ports[number]}\n"
                    f"http: 127.0.0.1:{monitors[number]}\n"
                    f'jetstream {{ store_dir: "{directory / f"n{number}"}" }}\n'
                    f"cluster {{ name: bench, listen: 127.0.0.1:{routes[number]},"
                    f" routes: [{urls}] }}\n"
                )
                stack.enter_context(self.process([server, "-c", str(file)], log))
            wait_for(lambda: all(map(is_healthy, monitors)), self.name, log)
            wait_for(lambda: asyncio.run(self._creates()), self.name, log)
            yield

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        return asyncio.run(self._apply(load, seconds))

    async def _creates(self) -> bool:
        """Return whether the stream exists now; it cannot before the nodes have a leader."""
        import nats

        connection = await nats.connect(f"nats://127.0.0.1:{self._ports[0]}")
        try:
            stream = connection.jetstream(timeout=CREATE_SECONDS_MAX)
            await stream.add_stream(name="log", subjects=["log"], num_replicas=NODES)
        except (nats.js.errors.Error, nats.errors.Error):
            return False
        finally:
            await connection.close()
        return True

    async def _apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        import nats

        data = load.data
        connection = await nats.connect(f"nats://127.0.0.1:{self._ports[0]}")
        stream = connection.jetstream()

        async def call() -> None:
            await stream.publish("log", data, timeout=PUBLISH_SECONDS_MAX)

        outstanding = load.outstanding if load.batch == 1 else BATCHED_OUTSTANDING
        found = await closed_loop(call, outstanding, seconds)
        await connection.close()
        return found


def is_healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as answer:
            return b'"ok"' in answer.read()
    except OSError:
        return False
