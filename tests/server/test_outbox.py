from __future__ import annotations

from tests.server.builders import flush, mark_request
from waltz.server.feeding.outbox import Outbox, Send
from waltz.wire.logical_link import Shared


def test_all_that_a_connection_is_told_leaves_at_once_and_in_order() -> None:
    outbox = Outbox()
    shared = Shared(flush())
    outbox.add(2, shared)
    outbox.add(1, flush())
    outbox.add(2, mark_request())
    assert outbox.take() == [Send(2, (shared, mark_request())), Send(1, (flush(),))]
    assert outbox.take() == []
