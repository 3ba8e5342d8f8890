from __future__ import annotations

from tests.server.builders import flush, mark_request
from waltz.server.feeding.outbox import Outbox, Send


def test_all_that_a_connection_is_told_leaves_at_once_and_in_order() -> None:
    outbox = Outbox()
    outbox.add(2, b"a")
    outbox.add(1, flush())
    outbox.add(2, mark_request())
    assert outbox.take() == [Send(2, (b"a", mark_request())), Send(1, (flush(),))]
    assert outbox.take() == []
