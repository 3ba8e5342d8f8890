"""The question of a container's health check, asked by the program itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from tests.clusters import ROOT

LIVE = ROOT / "deploy" / "docker" / "live.py"


@contextmanager
def answering(status: int) -> Iterator[str]:
    """An HTTP port whose answers all have that status; yields its URL."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def asked(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LIVE), url]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (401, 0), (503, 1)])
def test_an_answer_below_500_is_a_sign_of_life(status: int, code: int) -> None:
    with answering(status) as url:
        assert asked(f"{url}/live").returncode == code


def test_a_proxy_is_not_asked_in_the_place_of_the_process() -> None:
    """Docker gives all containers the proxies of its configuration."""
    with answering(200) as gone:
        pass
    with answering(403) as proxy:
        said = asked(f"{gone}/live", http_proxy=proxy)
    assert said.returncode == 1
    assert "refused" in said.stderr
