"""The customers: concurrent clients that order over HTTP, and check each answer at once.

Owns the requests and what they must be answered with. A customer that gets no answer, or is told
to try again, repeats the request with the same number.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Mapping
from random import Random
from threading import Event, Lock, Thread
from typing import Any, Final

from examples.shop.trial.drawing import Load

ANSWER_SECONDS_MAX: Final = 15.0
"""Seconds that a customer waits for an answer; then the request is repeated."""

GIVE_UP_SECONDS: Final = 180.0
"""Seconds of repetitions after which a run has failed: the shop is away for good."""

PAUSE_SECONDS: Final = 0.05
TRY_AGAIN: Final = frozenset({425, 503})
HANG_UP_SHARE: Final = 0.05
"""The share of orders whose customer hangs up before the answer, and orders again."""

ASK_AGAIN_SHARE: Final = 0.05
"""The share of orders that are sent again after they were confirmed."""

ASK_INVENTORY_SHARE: Final = 0.1
"""The share of orders that are looked for in the inventory, too, with the token of the order."""


class ShopClosedError(Exception):
    """No answer came for too long; the text names the request."""


class Customers:
    """All customers of a run; `confirmed` has a byte per order number, `wrong` what was wrong."""

    def __init__(
        self,
        load: Load,
        ports: Mapping[str, int],
        concurrent: int,
        *,
        seconds_max: float | None = None,
        desk: str = "orders",
    ) -> None:
        """`desk`: the service that takes orders. `seconds_max`: seconds after which no further
        order is begun; None: all are sent."""
        self.load, self.ports, self.concurrent, self.desk = load, ports, concurrent, desk
        self._seconds_max = float("inf") if seconds_max is None else seconds_max
        self._ends_at = float("inf")
        self.confirmed = bytearray(load.orders + 1)
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.post_seconds: list[float] = []
        self.stopped = Event()
        self._next, self._lock = 1, Lock()

    def open_shop(self) -> None:
        """Add the items and open the accounts."""
        customer = _Customer(self, 0)
        for number in range(1, self.load.items + 1):
            customer.write("inventory", "/items", self.load.item(number))
        for number in range(1, self.load.accounts + 1):
            customer.write("payments", "/accounts", self.load.account(number))

    def order_everything(self) -> None:
        """Return once every order that was begun is confirmed. Raises ShopClosedError."""
        self._ends_at = time.monotonic() + self._seconds_max
        customers = [_Customer(self, number) for number in range(1, self.concurrent + 1)]
        for each in customers:
            each.start()
        for each in customers:
            each.join()
        for each in customers:
            if each.error is not None:
                raise each.error

    def take(self) -> int | None:
        """Return the number of the next order; None: there is none any more."""
        with self._lock:
            is_late = time.monotonic() > self._ends_at
            if self._next > self.load.orders or self.stopped.is_set() or is_late:
                return None
            self._next += 1
            return self._next - 1

    def note(self, what: str, seconds: float | None = None) -> None:
        with self._lock:
            self.counts[what] += 1
            if seconds is not None:
                self.post_seconds.append(seconds)


class _Customer(Thread):
    """One client with a connection per service."""

    def __init__(self, shop: Customers, name: int) -> None:
        super().__init__(daemon=True)
        self.shop = shop
        self.random = Random(shop.load.seed << 20 | name)
        self.error: Exception | None = None
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def run(self) -> None:
        try:
            while (number := self.shop.take()) is not None:
                self._order(number)
        except Exception as error:  # whatever it is, it fails the run, which raises it again
            self.error = error
            self.shop.stopped.set()

    def _order(self, number: int) -> None:
        wanted = self.shop.load.order(number)
        if self.random.random() < HANG_UP_SHARE:
            self._hang_up(self.shop.desk, "/orders", wanted)
        begun = time.monotonic()
        token = self.write(self.shop.desk, "/orders", wanted)
        self.shop.confirmed[number] = 1
        self.shop.note("orders", time.monotonic() - begun)
        self._find("orders", number, token, wanted)
        if token is not None and self.random.random() < ASK_INVENTORY_SHARE:
            self._find("inventory", number, token, wanted)
        if self.random.random() < ASK_AGAIN_SHARE:
            self.write(self.shop.desk, "/orders", wanted)
            self._expect_conflict({**wanted, "pieces": wanted["pieces"] + 1})
            self.shop.note("orders sent again")

    def write(self, service: str, path: str, content: Mapping[str, int]) -> str | None:
        """Post until it is confirmed; return the token. Raises ShopClosedError."""
        status, token, answer = self._ask_until_answered("POST", service, path, content, None)
        if status != 201 or answer != content:
            self.shop.wrong.append(f"POST {path} {content} was answered {status} {answer}")
        return token

    def _expect_conflict(self, other: Mapping[str, int]) -> None:
        """Check that a confirmed order's number is not taken for other content."""
        status, _, answer = self._ask_until_answered("POST", self.shop.desk, "/orders", other, None)
        if status != 409:
            self.shop.wrong.append(f"POST /orders {other} was answered {status} {answer}")

    def _find(self, service: str, number: int, token: str | None, wanted: Any) -> None:
        """Check that what was confirmed is visible to the next reader with its token."""
        path = f"/orders/{number}"
        status, _, answer = self._ask_until_answered("GET", service, path, None, token)
        self.shop.note("reads with a token" if token else "reads")
        if status != 200 or {name: answer.get(name) for name in wanted} != wanted:
            self.shop.wrong.append(f"{service}: GET {path} with {token}: {status} {answer}")

    def _ask_until_answered(
        self, method: str, service: str, path: str, content: Any, token: str | None
    ) -> tuple[int, str | None, Any]:
        ends_at = time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                status, given, answer = self._ask(method, service, path, content, token)
                if status not in TRY_AGAIN:
                    return status, given, answer
                reason = str(status)
            except (OSError, http.client.HTTPException) as error:
                self._connections.pop(service).close()
                reason = type(error).__name__
            self.shop.note(f"repeated: {reason}")
            if time.monotonic() > ends_at or self.shop.stopped.is_set():
                raise ShopClosedError(f"{service}: {method} {path}: {reason}, again and again")
            time.sleep(PAUSE_SECONDS)

    def _ask(
        self, method: str, service: str, path: str, content: Any, token: str | None
    ) -> tuple[int, str | None, Any]:
        connection = self._connection(service)
        headers = {"waltz-token": token} if token else {}
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body, headers | {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        is_json = "json" in (response.headers.get_content_type())
        return (
            response.status,
            response.headers.get("waltz-token"),
            json.loads(text) if is_json else text.decode(errors="replace"),
        )

    def _hang_up(self, service: str, path: str, content: Mapping[str, int]) -> None:
        """Send a request and do not wait for its answer."""
        connection = self._connection(service)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(content), headers)
        except OSError:
            pass
        self._connections.pop(service).close()
        self.shop.note("hung up")

    def _connection(self, service: str) -> http.client.HTTPConnection:
        if service not in self._connections:
            self._connections[service] = http.client.HTTPConnection(
                "127.0.0.1", self.shop.ports[service], timeout=ANSWER_SECONDS_MAX
            )
        return self._connections[service]
