"""A receiver as somebody would write it: verifies a post, drops repeats, keeps the rest in a file.

python -m tests.bridge.receiver FILE SECRET [FAILURE_SHARE] [PORT]     # prints the port

Imports nothing of waltz. Each accepted transaction is a line of FILE, in the order of arrival, the
repeats too: `partition id header data_base64`. A share of posts is kept and not answered, and an
equal share is refused, so that repeats come.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

NAMES = ("Timestamp", "Cluster", "History", "Partition", "First", "Last")


def is_genuine(headers: dict[str, str], body: bytes, secret: bytes) -> bool:
    """Return whether a post comes from who has the secret, within five minutes."""
    values = [headers[f"Waltz-{name}"] for name in NAMES]
    signed = ".".join(values).encode() + b"." + body
    wanted = "v1=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
    if abs(time.time() - int(values[0])) > 300:
        return False
    given = headers["Waltz-Signature"].split(",")
    return any(hmac.compare_digest(wanted, each) for each in given)


def main(path: str, secret: str, share: str = "0", port: str = "0") -> None:
    chance, lock = random.Random(1), Lock()
    file = Path(path).open("a")  # noqa: SIM115 -- for the life of the process

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            named = {
                f"Waltz-{name}": self.headers[f"Waltz-{name}"] for name in (*NAMES, "Signature")
            }
            drawn = chance.random()
            if not is_genuine(named, body, secret.encode()):
                self._answer(401)
            elif drawn < float(share):
                self._answer(503)
            else:
                with lock:
                    self._keep(named, body)
                if drawn < 2 * float(share):
                    self.close_connection = True  # kept, and the answer is lost
                else:
                    self._answer(204)

        def _keep(self, named: dict[str, str], body: bytes) -> None:
            found = json.loads(body)
            ids = [each["transaction_id"] for each in found]
            assert (ids[0], ids[-1]) == (int(named["Waltz-First"]), int(named["Waltz-Last"]))
            for each in found:
                assert each["partition"] == int(named["Waltz-Partition"])
                values = (each["partition"], each["transaction_id"], each["header"])
                file.write(" ".join(map(str, values)) + f" {each['data_base64']}\n")
            file.flush()
            os.fsync(file.fileno())

        def _answer(self, status: int) -> None:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
