"""`manage.py waltz_apply`: a process that applies the log to the database, and does nothing else.

Owns when it ends: at SIGTERM and SIGINT, once the log is applied, or because its client has ended.
"""

from __future__ import annotations

import signal
import threading
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

import waltz.ext.django as log
from waltz.errors import UnavailableError, WaltzError

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks whether the client still follows, and between two attempts to open
it."""


class Command(BaseCommand):
    """Follows the log with the client of the setting `WALTZ`."""

    help = (
        "Follow the log and apply it with the callbacks of the setting WALTZ, until SIGTERM or"
        " SIGINT."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--until-applied",
            type=float,
            metavar="SECONDS",
            help="End once all that the log holds now is applied; fail after SECONDS.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        seconds: float | None = options["until_applied"]
        try:
            if seconds is None:
                self._follow()
            else:
                log.client().wait_until_applied(timeout_seconds=seconds)
                self.stdout.write("applied")
        except WaltzError as error:
            raise CommandError(str(error)) from error
        finally:
            log.close()

    def _follow(self) -> None:
        """Return at a signal. Raises CommandError: the client has ended by itself."""
        stop = threading.Event()
        before = {
            number: signal.signal(number, lambda *_: stop.set())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        client, told = None, ""
        try:
            while not stop.is_set():
                if client is None:
                    try:
                        client = log.client()
                        self.stdout.write("following")
                        self.stdout.flush()
                    except UnavailableError as error:
                        if str(error) != told:
                            told = str(error)
                            self.stderr.write(f"the log cannot be reached, trying again: {error}")
                elif client.is_closed:
                    raise CommandError(f"the client has ended: {client.engine.error}")
                stop.wait(LOOK_SECONDS)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
