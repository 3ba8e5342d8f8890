"""A loop in a thread of its own, and the calls that wait for it."""

from __future__ import annotations

import pytest

from waltz.connections.loop_thread import LoopThread
from waltz.errors import ClientClosedError, LocalProtocolError


def test_a_loop_thread_refuses_what_would_wait_for_itself() -> None:
    thread = LoopThread("waltz-test")

    async def nothing() -> None: ...

    async def nested() -> None:
        thread.call(nothing())

    with pytest.raises(LocalProtocolError, match="event loop that would have to serve it"):
        thread.call(nested())
    thread.stop()
    thread.stop()
    with pytest.raises(ClientClosedError):
        thread.call(nothing())
