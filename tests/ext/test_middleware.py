"""Django's middleware for tokens, under WSGI and ASGI, and its answer while the log is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sql
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings

import waltz
from tests.client.sql_applications import P0
from tests.ext.django_project import DjangoApplying, alias_of, migrate
from waltz.client.consistency_token import ConsistencyToken
from waltz.client.token_middleware_shell import WAITING_MAX
from waltz.errors import ClientClosedError, UnavailableError
from waltz.ext.django.middleware import TokenMiddleware
from waltz.ext.unfinished import UNFINISHED
from waltz.types import NOTHING

HISTORY = UUID(int=5)
Answer = Callable[[str | None], Any]


def token_of(mark: int, history: UUID = HISTORY) -> str:
    return str(ConsistencyToken.of(history, {0: mark}))


@pytest.fixture(params=["sqlite"])
def database(tmp_path: Any) -> sql.URL:
    return sql.make_url(f"sqlite:///{tmp_path / 'app.db'}")


@pytest.fixture
def callbacks(engine: sql.Engine) -> DjangoApplying:
    migrate(engine.url)
    made = DjangoApplying(engine)
    made.get_client_high_water_mark(P0)
    made.keep_client_history(P0, HISTORY, None)
    return made


def view(request: HttpRequest) -> HttpResponse:
    waltz.give_token(request.META, ConsistencyToken.of(HISTORY, {1: 3}))
    return HttpResponse("seen")


async def async_view(request: HttpRequest) -> HttpResponse:
    return view(request)


@pytest.fixture(params=["WSGI", "ASGI"])
def answer(request: pytest.FixtureRequest, callbacks: DjangoApplying) -> Answer:
    """Answers a request that brings this token, or none."""
    settings = {"CLUSTER": "x:1", "MARKS": callbacks.using, "TOKEN_WAIT_SECONDS": 0.05}
    with override_settings(WALTZ=settings):
        made = TokenMiddleware(view if request.param == "WSGI" else async_view)

    def ask(token: str | None) -> Any:
        asked = HttpRequest()
        if token is not None:
            asked.META["HTTP_WALTZ_TOKEN"] = token
        if request.param == "WSGI":
            return made(asked)

        async def answered() -> Any:
            return await made(asked)  # type: ignore[misc]

        return asyncio.run(answered())

    return ask


def move(callbacks: DjangoApplying, mark: int) -> None:
    from waltz.ext.django.models import HighWaterMark

    HighWaterMark.objects.using(callbacks.using).update(high_water_mark=mark)


def test_a_response_gives_its_token_together_with_the_one_that_came(
    answer: Answer, callbacks: DjangoApplying
) -> None:
    move(callbacks, 9)
    assert answer(None).headers["Waltz-Token"] == str(ConsistencyToken.of(HISTORY, {1: 3}))
    found = answer(token_of(9))
    assert (found.status_code, found.content) == (200, b"seen")
    both = ConsistencyToken.of(HISTORY, {0: 9, 1: 3})
    assert found.headers["Waltz-Token"] == str(both)


def test_a_token_that_is_not_applied_in_time_is_too_early(
    answer: Answer, callbacks: DjangoApplying, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answer(token_of(1))
    assert (found.status_code, found.headers["Retry-After"]) == (425, "1")
    move(callbacks, 1)
    assert answer(token_of(1)).status_code == 200


def test_no_more_than_so_many_requests_wait(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in answer.__closure__ or ():
        if isinstance(cell.cell_contents, TokenMiddleware):
            made = cell.cell_contents
    for _ in range(WAITING_MAX):
        assert made._room.acquire(blocking=False)
    made._wait_seconds = 3_600.0
    assert answer(token_of(1)).status_code == 425
    assert answer(None).status_code == 200


def test_a_token_of_another_history_or_none_at_all_is_refused(
    answer: Answer, callbacks: DjangoApplying
) -> None:
    move(callbacks, NOTHING)
    assert answer(token_of(0, UUID(int=6))).status_code == 409
    assert answer("1.nonsense").status_code == 400


def test_a_view_that_cannot_reach_the_log_is_answered_and_tells_no_address(
    callbacks: DjangoApplying, caplog: pytest.LogCaptureFixture
) -> None:
    made = TokenMiddleware(view)
    request = HttpRequest()
    for error in (UnavailableError("at 10.0.0.1"), ClientClosedError("at 10.0.0.1")):
        found = made.process_exception(request, error)
        assert found is not None
        assert (found.status_code, found.content.decode()) == (503, f"{UNFINISHED}\n")
    assert made.process_exception(request, ValueError("the view's own")) is None
    assert "request_unfinished" in caplog.text
    assert alias_of(sql.make_url("sqlite:///x")) != callbacks.using
