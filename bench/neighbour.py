"""Measure what a client that floods a server does to the appends of another one, in turns.

    python -m bench.neighbour [--turns 5] [--seconds 10] [--rate 1MiB/s] [--batch 500]

A server with its storage node and coordinator in one process, with TLS; a client that appends one
transaction after the other, with a pause between; and in two of three kinds of turns a client in a
process of its own that appends as much as it can, with a quota and without one. The quota is in the
policy's file, which the server takes anew before each turn. A turn is measured once the flood has
used up its burst. Prints the latency of the first client's appends in each turn and each kind, and
the ratio of its p99 next to the flood to that alone; ends with 1 if that is above `--ratio` with a
quota.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import waltz
from tests.server.real_server import running_server
from tests.tls_files import TlsFiles
from waltz.access.policy_watch_shell import AccessConfig
from waltz.types import TlsSettings

ALONE: Final = "alone"
WITH_QUOTA: Final = "flood, quota"
WITHOUT: Final = "flood, no quota"
PAUSE_SECONDS: Final = 0.005
SETTLE_SECONDS: Final = 4.0
"""Until another policy is taken, and the burst of the flood is over."""

FLOOD_THREADS: Final = 8
FLOOD_BYTES: Final = 1_000
POLICY_NAME: Final = "policy.yaml"
POLICY: Final = """
version: {version}
mode: deny
default: deny
roles:
  free: {{verbs: [append, read], partitions: all}}
  held: {{verbs: [append, read], partitions: all, quota: {{append_bytes: {rate}}}}}
grants:
  "spiffe://tests/steady": [free]
  "spiffe://tests/flood": [{role}]
"""


def serve(directory: Path, authorities: str, certificate: str) -> None:
    """Run a server until standard input ends; it asks the policy in its directory, if any."""

    async def main() -> None:
        tls = TlsSettings(certificate=certificate, authorities=authorities)
        policy = directory / POLICY_NAME
        access = AccessConfig(policy_path=str(policy) if policy.exists() else None)
        async with running_server(directory, tls=tls, access=access) as (_, server):
            print(f"waltz://{server.address}", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    asyncio.run(main())


def flood(address: str, authorities: str, certificate: str, batch: int) -> None:
    """Append as much as there is room for until standard input ends; then print how much it was."""
    tls = TlsSettings(certificate=certificate, authorities=authorities)
    data, counts = [bytes(FLOOD_BYTES)] * batch, [0] * FLOOD_THREADS
    is_over = threading.Event()
    with waltz.open_client(address, waltz.NoCallbacks(), tls=tls) as client:

        def work(number: int) -> None:
            while not is_over.is_set():
                client.append_many(0, data, timeout_seconds=120)
                counts[number] += batch

        threads = [threading.Thread(target=work, args=(number,)) for number in range(FLOOD_THREADS)]
        for each in threads:
            each.start()
        sys.stdin.read()
        print(sum(counts), flush=True)
        is_over.set()
        for each in threads:
            each.join()


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.neighbour", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(timeout=120)


def latencies(client: waltz.WaltzClient, seconds: float) -> list[float]:
    """Append one transaction after the other for that long; return what each took, in seconds."""
    found, end = [], time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        client.append(0, b"steady")
        found.append(time.monotonic() - began)
        time.sleep(PAUSE_SECONDS)
    return found


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", default="1MiB/s")
    parser.add_argument("--ratio", type=float, default=1.3)
    parser.add_argument("--batch", type=int, default=500, help="appends per call of the flood")
    parser.add_argument("--serve", nargs=3)
    parser.add_argument("--flood", nargs=3)
    options = parser.parse_args()
    if options.serve:
        directory, authorities, certificate = options.serve
        serve(Path(directory), authorities, certificate)
    elif options.flood:
        address, authorities, certificate = options.flood
        flood(address, authorities, certificate, options.batch)
    else:
        with tempfile.TemporaryDirectory(prefix="waltz-neighbour-") as name:
            measure(Path(name), options)


def measure(place: Path, options: argparse.Namespace) -> None:
    files = TlsFiles(place)
    directory, version = place / "server", 0
    directory.mkdir()
    server_tls = files.peer()
    found: dict[str, list[float]] = {ALONE: [], WITH_QUOTA: [], WITHOUT: []}

    def write_policy(role: str) -> None:
        nonlocal version
        version += 1
        text = POLICY.format(version=version, rate=options.rate, role=role)
        (directory / POLICY_NAME).write_text(text)

    write_policy("held")
    steady = TlsSettings(certificate=files.issue("steady"), authorities=files.authorities)
    certificate = files.issue("flood")
    started = process("--serve", str(directory), files.authorities, str(server_tls.certificate))
    with started as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with waltz.open_client(address, waltz.NoCallbacks(), tls=steady) as client:
            latencies(client, 3.0)
            for _ in range(options.turns):
                for kind, each in found.items():
                    write_policy("free" if kind == WITHOUT else "held")
                    flooding = (
                        "--batch",
                        str(options.batch),
                        "--flood",
                        address,
                        files.authorities,
                        certificate,
                    )
                    each.append(one_turn(client, kind, flooding, options.seconds))
    for kind, each in found.items():
        low, high = 1e3 * min(each), 1e3 * max(each)
        print(f"{kind}: p99 {1e3 * statistics.median(each):.2f} ms ({low:.2f} to {high:.2f})")
    ratios = {
        kind: [one / alone for one, alone in zip(found[kind], found[ALONE], strict=True)]
        for kind in (WITH_QUOTA, WITHOUT)
    }
    for kind, each in ratios.items():
        text = f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
        print(f"{kind}: {text} times the p99 alone")
    sys.exit(statistics.median(ratios[WITH_QUOTA]) > options.ratio)


def one_turn(
    client: waltz.WaltzClient,
    kind: str,
    flooding: tuple[str, ...],
    seconds: float,
) -> float:
    """Return the p99 of the client's appends, in seconds; `flooding` are the arguments of the
    process that floods."""
    if kind == ALONE:
        time.sleep(SETTLE_SECONDS)
        values, flooded = latencies(client, seconds), 0
    else:
        time.sleep(SETTLE_SECONDS)
        with process(*flooding) as child:
            time.sleep(SETTLE_SECONDS)
            values = latencies(client, seconds)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.close()
            flooded = int(child.stdout.readline())
    middle = 1e3 * statistics.median(values)
    print(
        f"{kind}: {len(values)} appends, p50 {middle:.2f} ms, p99 {1e3 * p99(values):.2f} ms;"
        f" flooded {flooded}",
        flush=True,
    )
    return p99(values)


if __name__ == "__main__":
    main()
