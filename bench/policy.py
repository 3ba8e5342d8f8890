"""Measure what a policy costs the appends of those who are granted them, in turns.

    python -m bench.policy [--turns 20] [--seconds 4] [--batch 500]

Two servers, each with its storage node and coordinator in a process of its own, over TLS: one asks
a policy that denies what it does not name, the other one has none. One client each appends as much
as it can, many transactions per call, in turns that follow each other at once; a pair of turns is
compared, in alternating order. Prints the appends per second of each pair and the median of the
ratios; ends with 1 if that is below `--ratio`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import waltz
from bench.neighbour import POLICY_NAME, process
from tests.tls_files import TlsFiles
from waltz.types import TlsSettings

KINDS: Final = ("no policy", "policy")
THREADS: Final = 4
DATA: Final = bytes(128)
POLICY: Final = """
version: 1
mode: deny
default: deny
roles:
  reports: {verbs: [read], partitions: all}
  orders: {verbs: [append, read], partitions: 0-7, headers: 0..9}
grants:
  "spiffe://tests/spark": [reports]
  "spiffe://tests/orders": [reports, orders]
"""


def appended(client: waltz.WaltzClient, seconds: float, batch: int) -> float:
    """Append as much as there is room for; return the appends per second."""
    counts, end = [0] * THREADS, time.monotonic() + seconds

    def work(number: int) -> None:
        while time.monotonic() < end:
            client.append_many(0, [DATA] * batch)
            counts[number] += batch

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    began = time.monotonic()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(counts) / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=500, help="appends per call")
    parser.add_argument("--ratio", type=float, default=0.99)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waltz-policy-") as name, ExitStack() as stack:
        place = Path(name)
        files = TlsFiles(place)
        tls = TlsSettings(certificate=files.issue("orders"), authorities=files.authorities)
        clients = {}
        for kind in KINDS:
            directory = place / kind.replace(" ", "-")
            directory.mkdir()
            if kind == "policy":
                (directory / POLICY_NAME).write_text(POLICY)
            certificate = str(files.peer().certificate)
            server = stack.enter_context(
                process("--serve", str(directory), files.authorities, certificate)
            )
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            clients[kind] = stack.enter_context(
                waltz.open_client(address, waltz.NoCallbacks(), tls=tls)
            )
            appended(clients[kind], 2.0, options.batch)
        ratios = []
        for turn in range(options.turns):
            order = KINDS if turn % 2 else KINDS[::-1]
            rates = {
                kind: appended(clients[kind], options.seconds, options.batch) for kind in order
            }
            ratios.append(rates["policy"] / rates["no policy"])
            text = ", ".join(f"{kind} {rates[kind]:,.0f}/s" for kind in KINDS)
            print(f"{text}: {ratios[-1]:.3f}", flush=True)
    found = statistics.median(ratios)
    print(f"with a policy {found:.3f} times ({min(ratios):.3f} to {max(ratios):.3f})")
    sys.exit(found < options.ratio)


if __name__ == "__main__":
    main()
