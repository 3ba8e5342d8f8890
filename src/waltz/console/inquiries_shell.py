"""Asks what single pages want to know, within bounds that no number of viewers can pass.

Owns the queue of questions. Viewers of the same page share its answer; each kind of question has
its pace, few are under way at a time, and what is wanted beyond the queue is told to be too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from waltz.console.answers import Told
from waltz.console.inquiries import READ_FOR_A_PAGE, Inquiry
from waltz.errors import WaltzError
from waltz.host import Clock

UNDER_WAY_MAX: Final = 4
"""Questions under way at a time."""

WAITING_MAX: Final = 64
"""Questions that wait for their turn; one more is answered with TOO_MANY."""

KEPT_MAX: Final = 128
"""Answers that are kept, those that were wanted last; each is at most some tens of KiB."""

SECONDS_MAX: Final = 30.0
"""Seconds that one question may take."""

STALE_SECONDS: Final = 120.0
"""Seconds after which an answer is no longer shown."""

TOO_MANY: Final = "too many pages are looked at; load this page again in a few seconds"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    told: Told[Any] = field(default_factory=lambda: Told(fresh_seconds=STALE_SECONDS))
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    finished_at: float = float("-inf")


class Inquiries:
    """See the module. `number` counts what has been answered; `questions` what was asked."""

    def __init__(self, clock: Clock, ask: Callable[[Inquiry], Awaitable[Any]]) -> None:
        self._clock = clock
        self._ask = ask
        self.number = 0
        self.questions = 0
        self._known: dict[Inquiry, _Known] = {}
        """The one that was wanted longest ago comes first."""
        self._waiting: dict[Inquiry, None] = {}
        self._under_way: dict[Inquiry, asyncio.Task[None]] = {}
        self._next_at: dict[type[Any], float] = {}
        self._pump: asyncio.Task[None] | None = None

    def told(self, question: Inquiry, *, asks: bool = True) -> Told[Any]:
        """Return what is known, and with `asks` have it asked if it is not, or no longer fresh."""
        known = self._known.pop(question, None)
        if known is None:
            if not asks:
                return Told()
            known = _Known()
        self._known[question] = known
        if asks and self._clock.now() - known.finished_at >= question.fresh:
            return self._wanted(question, known)
        return known.told

    async def first(self, question: Inquiry, seconds_max: float) -> Told[Any]:
        """Return what is told once it was asked for, at most `seconds_max` later."""
        told = self.told(question)
        known = self._known.get(question)
        if known is None or not self._is_asked(question):
            return told
        known.answered.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await known.answered.wait()
        return known.told

    async def stop(self) -> None:
        """End all questions. Idempotent."""
        tasks = [*self._under_way.values()]
        if self._pump is not None:
            tasks.append(self._pump)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_asked(self, question: Inquiry) -> bool:
        return question in self._waiting or question in self._under_way

    def _wanted(self, question: Inquiry, known: _Known) -> Told[Any]:
        if self._is_asked(question):
            return known.told
        if isinstance(question, READ_FOR_A_PAGE):
            known.told = Told(fresh_seconds=STALE_SECONDS)
        if len(self._waiting) >= WAITING_MAX:
            if known.told.answer is None:
                # Kept, so that a page that only looks does not say that it is being asked.
                known.told = replace(known.told, trouble=TOO_MANY)
            self._forget()
            return known.told
        if known.told.trouble == TOO_MANY:
            known.told = replace(known.told, trouble=None)
        self._waiting[question] = None
        self._forget()
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        return known.told

    def _forget(self) -> None:
        """Keep the answers that were wanted last."""
        for question in [*self._known]:
            if len(self._known) <= KEPT_MAX:
                return
            if not self._is_asked(question):
                del self._known[question]

    async def _run(self) -> None:
        try:
            while self._waiting:
                if len(self._under_way) >= UNDER_WAY_MAX:
                    await asyncio.wait(
                        [*self._under_way.values()], return_when=asyncio.FIRST_COMPLETED
                    )
                now = self._clock.now()
                due = {each: self._next_at.get(type(each), now) for each in self._waiting}
                question = min(due, key=due.__getitem__)
                if due[question] > now:
                    await asyncio.sleep(due[question] - now)
                    continue
                del self._waiting[question]
                self._next_at[type(question)] = now + question.pause
                self.questions += 1
                self._under_way[question] = asyncio.create_task(self._asked(question))
        finally:
            self._pump = None

    async def _asked(self, question: Inquiry) -> None:
        known = self._known[question]
        asked_at = self._clock.now()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                answer = await self._ask(question)
            known.told = replace(known.told, answer=answer, asked_at=asked_at, trouble=None)
        except TimeoutError:
            known.told = replace(known.told, trouble=f"no answer in {SECONDS_MAX:g} s")
        except WaltzError as error:
            known.told = replace(known.told, trouble=str(error) or type(error).__name__)
        except Exception as error:
            log.exception("question_failed")
            known.told = replace(known.told, trouble=f"the console failed to ask: {error!r}")
        finally:
            known.finished_at = self._clock.now()
            self._under_way.pop(question, None)
            self.number += 1
            known.answered.set()
