"""The applications of docs/frameworks.md as projects in a folder, and real servers that run them.

Owns the ways in which a site is served, stopped, struck and asked. What was confirmed is written
down, to be compared with the log.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.clusters import ROOT, wait_until
from tests.http_asking import Reply

PAGE = (ROOT / "docs" / "frameworks.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# ([\w/]+\.py)[^\n]*\n(.*?)```", PAGE, re.DOTALL))
"""The files of the page by their names."""
FASTAPI = "notes_api.py"
SETTINGS = "notes_site/settings.py"
SESSIONS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[-1]
COMMANDS = [
    command.partition("    ")[0]
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)
]
"""The commands that the page tells its reader to type, in the order of the page."""
MAKES_PROJECT = ("django-admin startproject", "python manage.py startapp")
MAKES_TABLES = ("python manage.py makemigrations", "python manage.py migrate")
EXIT_SECONDS_MAX = 60.0
"""No server may take longer to end than this: the end must not wait for anything."""

SETTINGS_AROUND = """
DATABASES = {"default": {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ["NOTES_DATABASE"].removeprefix("sqlite:///").partition("?")[0],
    "OPTIONS": {"timeout": 60, "init_command": "PRAGMA journal_mode=WAL"},
}}
"""

UVICORN = ("-m", "uvicorn", "--host", "127.0.0.1", "--port", "{port}", "--log-level", "warning")
GUNICORN = (
    *("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "4", "--log-level", "warning"),
    *("--graceful-timeout", "20", "--no-control-socket"),
)
THREADS = ("--worker-class", "gthread", "--threads", "4")
UVICORN_WORKER = ("--worker-class", "uvicorn_worker.UvicornWorker")
SERVERS: Mapping[str, Sequence[str]] = {
    "uvicorn": (*UVICORN, "--workers", "4", "notes_api:app"),
    "uvicorn reload": (*UVICORN, "--reload", "notes_api:app"),
    "gunicorn": (*GUNICORN, *UVICORN_WORKER, "notes_api:app"),
    "gunicorn preload": (*GUNICORN, *UVICORN_WORKER, "--preload", "notes_api:app"),
    "django gunicorn": (*GUNICORN, *THREADS, "notes_site.wsgi"),
    "django gunicorn preload": (*GUNICORN, *THREADS, "--preload", "notes_site.wsgi"),
    "django uvicorn": (
        *UVICORN,
        "--workers",
        "2",
        "--lifespan",
        "off",
        "notes_site.asgi:application",
    ),
    "django runserver": ("manage.py", "runserver", "127.0.0.1:{port}"),
}


def make_sites(folder: Path) -> None:
    """Make the page's applications in a folder, by the page's commands."""

    def run(*beginnings: str) -> None:
        for command in COMMANDS:
            if command.startswith(beginnings):
                arguments = command.replace("django-admin", "python -m django", 1).split()[1:]
                done = site.run(*arguments)
                assert done.returncode == 0, done.stderr

    site = Site(folder, "127.0.0.1:1", (), 0)
    run(*MAKES_PROJECT)
    for name, text in PROGRAMS.items():
        before = (folder / name).read_text() if name == SETTINGS else ""
        (folder / name).write_text(before + text)
    with (folder / SETTINGS).open("a") as settings:
        settings.write(SETTINGS_AROUND)
    run(*MAKES_TABLES)


@dataclass
class Site:
    """A site in `folder` that appends to a cluster; `process` serves it."""

    folder: Path
    cluster: str
    server: Sequence[str]
    port: int
    confirmed: dict[int, str] = field(default_factory=dict)
    """The texts of notes whose requests were answered with 201, by their transactions."""
    statuses: dict[int, int] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "WALTZ_CLUSTER": self.cluster,
            "NOTES_DATABASE": f"sqlite:///{self.folder / 'notes.db'}?timeout=60",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(self.folder))),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Python in the folder."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    def start(self) -> None:
        """Return once it answers."""
        command = [each.format(port=self.port) for each in self.server]
        with (self.folder / "served").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder, env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.wait_until_answered()

    def wait_until_answered(self) -> None:
        wait_until(lambda: self._status("GET", "/notes/999999999") is not None, self.said())

    def said(self) -> str:
        return (self.folder / "served").read_text()

    def members(self) -> list[int]:
        """Return the processes of the server, its first one included."""
        assert self.process is not None
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(") ")[2].split()[:4]
            except OSError:
                continue  # it has ended
            if int(session) == self.process.pid and state != "Z":
                found.append(int(path.parent.name))
        return sorted(found)

    def kill_a_worker(self, random: Random) -> None:
        """Kill one of the processes that are not the first."""
        assert self.process is not None
        workers = [each for each in self.members() if each != self.process.pid]
        if workers:
            with_suppressed_kill(random.choice(workers))

    def stop(self) -> None:
        """Stop it as an operator does; every process of it ends, by itself."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(EXIT_SECONDS_MAX)
        wait_until(lambda: not self.members(), f"{self.members()} hang: {self.said()}")

    def end(self) -> None:
        """Leave nothing behind."""
        for each in self.members() if self.process is not None else []:
            with_suppressed_kill(each)
        if self.process is not None:
            self.process.wait()

    def add(self, text: str) -> None:
        """Ask for a note; remember it if it was confirmed."""
        reply = self._status("POST", f"/notes?text={text}")
        if reply is None:
            return
        self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
        found = re.search(r'"id": ?(\d+)}', reply.text)
        if reply.status == 201 and found is not None:  # else the answer was cut short
            number = int(found.group(1))
            assert number not in self.confirmed
            self.confirmed[number] = text

    def ask(self, method: str, path: str, token: str | None = None) -> Reply:
        """Return the answer. Raises OSError, HTTPException: there was none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {} if token is None else {"Waltz-Token": token}
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read().decode(), answer.headers)
        finally:
            connection.close()

    def _status(self, method: str, path: str) -> Reply | None:
        try:
            return self.ask(method, path)
        except (OSError, http.client.HTTPException):
            return None

    @contextmanager
    def adding(self, threads: int = 3) -> Iterator[None]:
        """Ask for notes, in threads, until the block ends."""
        stop = threading.Event()

        errors: list[Exception] = []

        def work(own: int) -> None:
            try:
                ask_again(own)
            except Exception as error:
                errors.append(error)

        def ask_again(own: int) -> None:
            count = 0
            while not stop.is_set():
                self.add(f"{own}-{time.monotonic_ns()}-{count}")
                count += 1
                time.sleep(0.005)

        running = [threading.Thread(target=work, args=(each,)) for each in range(threads)]
        for each in running:
            each.start()
        try:
            yield
        finally:
            stop.set()
            for each in running:
                each.join()
        assert not errors

    def wait_for_more(self, count: int = 3) -> None:
        """Return once some more notes were confirmed."""
        wanted = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= wanted, f"nothing is confirmed: {self.said()}")


def with_suppressed_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
