"""A client that appends and writes down what it was told:
`writer CLUSTER JOURNAL NAME [--tls-ca FILE --tls-cert FILE]`.

A module that imports the public names of Waltz and nothing of the tests, so that it runs
under the release that is installed where its Python is. One thread per partition appends one
transaction after the other; each line of the journal is with the operating system before the next
step, so that it outlives the process:

    ? PARTITION NUMBER     about to be appended
    = PARTITION NUMBER ID  the append returned this transaction ID
    - PARTITION NUMBER     the append was refused, and is not in the log

A number with the first line only is unknown. The data of a transaction is `NAME PARTITION NUMBER`
and padding. The client stops when its standard input ends.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TextIO

import waltz

PADDING_BYTES = 40
PAUSE_SECONDS = 0.01


class Journal:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def note(self, *words: object) -> None:
        with self._lock:
            self._file.write(" ".join(map(str, words)) + "\n")
            self._file.flush()


def write(
    client: waltz.WaltzClient, journal: Journal, name: str, partition: int, end: threading.Event
) -> None:
    number = 0
    while not end.wait(PAUSE_SECONDS):
        number += 1
        data = f"{name} {partition} {number} ".encode() + b"." * PADDING_BYTES
        journal.note("?", partition, number)
        try:
            transaction_id = client.append(partition, data)
        except waltz.WaltzError as error:
            if not error.may_be_written:
                journal.note("-", partition, number)
        else:
            journal.note("=", partition, number, int(transaction_id))


def end_with_any_thread() -> None:
    """Have an exception of any thread end the process, with its traceback in the log."""
    plain = threading.excepthook

    def show_and_end(given: threading.ExceptHookArgs) -> None:
        plain(given)
        sys.stderr.flush()
        os._exit(1)

    threading.excepthook = show_and_end


def main(cluster: str, path: str, name: str, *options: str) -> None:
    end_with_any_thread()
    end = threading.Event()
    given = dict(zip(options[::2], options[1::2], strict=True))
    tls = None
    if given:
        tls = waltz.TlsSettings(certificate=given["--tls-cert"], authorities=given["--tls-ca"])
    with (
        Path(path).open("w") as file,
        waltz.open_client(cluster, waltz.NoCallbacks(), tls=tls) as client,
    ):
        journal = Journal(file)
        threads = [
            threading.Thread(target=write, args=(client, journal, name, partition, end))
            for partition in range(client.partition_count)
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
