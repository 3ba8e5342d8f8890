"""etcd with three members; the calls are gRPC with messages packed by hand: there are two."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
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

MEMBERS = 3


class Etcd(Peer):
    name = "etcd, 3 members"
    durability = "in the logs of a majority of three members, each synced"
    driver = "Python, grpcio"
    batching = "100 puts in one transaction"

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[int] = []
        self._numbers = count()

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        try:
            import grpc.aio  # noqa: F401
        except ModuleNotFoundError:
            raise UnavailableHereError("no grpc: pip install grpcio") from None
        etcd = program("etcd", "etcd-server")
        ports = free_ports(2 * MEMBERS)
        self._clients, peers = ports[:MEMBERS], ports[MEMBERS:]
        together = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        log = directory / "log"
        with ExitStack() as stack:
            for number in range(MEMBERS):
                client = f"http://127.0.0.1:{self._clients[number]}"
                peer = f"http://127.0.0.1:{peers[number]}"
                stack.enter_context(
                    self.process(
                        [
                            *(etcd, "--name", f"m{number}"),
                            *("--data-dir", str(directory / f"m{number}")),
                            *("--listen-client-urls", client, "--advertise-client-urls", client),
                            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                            *("--initial-cluster", together, "--log-level", "error"),
                            "--quota-backend-bytes=8589934592",
                        ],
                        log,
                    )
                )
            wait_for(self._is_healthy, self.name, log)
            yield

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        calls, taken, p50, p99 = asyncio.run(self._apply(load, seconds))
        return calls * load.batch, taken, p50, p99

    async def _apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        import grpc.aio

        data = load.data
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self._clients[0]}") as channel:
            verb = "Put" if load.batch == 1 else "Txn"
            method = channel.unary_unary(f"/etcdserverpb.KV/{verb}")

            async def call() -> None:
                puts = [put(b"log/%016d" % next(self._numbers), data) for _ in range(load.batch)]
                await method(puts[0] if load.batch == 1 else transaction(puts))

            return await closed_loop(call, load.outstanding, seconds)

    def _is_healthy(self) -> bool:
        try:
            for port in self._clients:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                    if b'"true"' not in answer.read():
                        return False
        except OSError:
            return False
        return True


def field(number: int, content: bytes) -> bytes:
    """Return a field of a Protocol Buffers message that has bytes in it."""
    length, size = b"", len(content)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def put(key: bytes, value: bytes) -> bytes:
    """Return a PutRequest: 1 the key, 2 the value."""
    return field(1, key) + field(2, value)


def transaction(puts: Sequence[bytes]) -> bytes:
    """Return a TxnRequest without conditions: 2 the operations, each with 2 a put."""
    return b"".join(field(2, field(2, each)) for each in puts)
