"""A client of the Java original that writes down what it was told, as `writer.py` does for ours:
`python -m tests.rolling.original_writer CLUSTER JOURNAL NAME VERSION [OPTIONS]`; the options, for
TLS, are `--tls-ca FILE --tls-cert FILE`.

One client of tests/interop per partition: the original's frames, two connections, a window of five
appends. An append is acknowledged when the feed brings it back. Its journal names requests in place
of numbers. The original learns from ZooKeeper where a partition is; this one asks `waltz status`.
"""

from __future__ import annotations

import json
import ssl
import struct
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.original_client import NotServedError, OriginalClient
from tests.rolling.writer import Journal, end_with_any_thread
from waltz.types import Address

BODY: Final = b"of a client of the original"
DATA: Final = struct.pack(">i", len(BODY)) + BODY + struct.pack(">I", zlib.crc32(BODY))
TURN_SECONDS: Final = 0.1
REST_SECONDS: Final = 0.1
"""Between two turns: the original would go on, and leave less of a small machine to the others."""
PAUSE_SECONDS: Final = 0.3
CLIENT_IDS_FROM: Final = 500_000
"""Above all that the coordinator gives in a test."""


class WritingClient(OriginalClient):
    """Writes down what it sends, and what comes back."""

    journal: Journal

    def note_sent(self, number: int, request_id: bytes) -> None:
        self.journal.note("?", number, request_id.hex())

    def note_committed(self, number: int, request_id: bytes, transaction_id: int) -> None:
        self.journal.note("=", number, request_id.hex(), transaction_id)


@dataclass(frozen=True)
class Cluster:
    """The cluster's address, and the options and the context with which its servers are reached."""

    address: str
    options: tuple[str, ...]
    tls: ssl.SSLContext | None


def served(cluster: Cluster) -> dict[int, tuple[Address, int]]:
    """Return the server and the generation of each partition that has a server."""
    place = ("--cluster", cluster.address, *cluster.options)
    done = subprocess.run(
        [sys.executable, "-m", "waltz.cli.main", "status", *place, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if not done.stdout:
        return {}
    found = {}
    for each in json.loads(done.stdout)["partitions"]:
        if each["server"] is not None:
            host, _, port = each["server"].rpartition(":")
            found[each["partition_id"]] = Address(host, int(port)), int(each["generation"])
    return found


def write(
    cluster: Cluster,
    journal: Journal,
    partition: int,
    client_id: int,
    version: int,
    end: threading.Event,
) -> None:
    """Append until the end, in that version of the protocol; what is in the window when a server
    goes stays unknown."""
    mark = -1
    sequence = 0
    while not end.is_set():
        place = served(cluster).get(partition)
        if place is None:
            end.wait(PAUSE_SECONDS)
            continue
        address, generation = place
        client = None
        try:
            client = WritingClient(
                address,
                client_id,
                {partition: generation},
                version=version,
                data=DATA,
                tls=cluster.tls,
            )
            client.journal = journal
            client.sequence = sequence
            client.mount({partition: mark})
            while not end.is_set():
                before = client.applied
                client.run(TURN_SECONDS)
                # The original is told by ZooKeeper that a partition has moved.
                if client.applied == before and served(cluster).get(partition) != place:
                    break
                end.wait(REST_SECONDS)
        except (NotServedError, OSError):
            end.wait(PAUSE_SECONDS)
        finally:
            if client is not None:
                mark, sequence = client.partitions[partition].mark, client.sequence
                client.close()


def main(address: str, path: str, name: str, version: str, *options: str) -> None:
    end_with_any_thread()
    end = threading.Event()
    given = dict(zip(options[::2], options[1::2], strict=True))
    tls = None
    if given:
        tls = ssl.create_default_context(cafile=given["--tls-ca"])
        tls.load_cert_chain(given["--tls-cert"])
    cluster = Cluster(address, options, tls)
    first = CLIENT_IDS_FROM + 100 * int(name.rpartition("-")[2])
    with Path(path).open("w") as file:
        journal = Journal(file)
        partitions = sorted(served(cluster))
        threads = [
            threading.Thread(
                target=write, args=(cluster, journal, number, first + number, int(version), end)
            )
            for number in partitions
        ]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        end.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
