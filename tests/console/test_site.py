"""The pages by their paths, from one picture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.console.states import NOW, cluster
from waltz.console.answers import ClusterAnswers, ConsumerAnswer, ConsumersTold, Told
from waltz.console.marks_history import MarksHistory
from waltz.console.picture import picture_of
from waltz.console.site import PARTITIONS_PER_PAGE, Site, found_path
from waltz.console.view import View
from waltz.types import PartitionId


def shown(target: str, answers: ClusterAnswers) -> str | None:
    page = Site().page(target, View((1, 0), picture_of(answers), answers, MarksHistory()))
    return None if page is None else page.whole()


def test_a_large_map_has_pages() -> None:
    answers = cluster(partitions=250)
    first = shown("/", answers)
    assert first is not None
    assert 'id="p99"' in first
    assert 'id="p100"' not in first
    last = shown("/?from=249", answers)
    assert last is not None
    assert 'id="p200"' in last
    assert f'href="/?from={PARTITIONS_PER_PAGE}"' in last
    assert shown("/?from=99999", answers) is not None


def consumer(name: str, behind: int | None, seconds: float | None) -> ConsumerAnswer:
    address, principal = "10.0.0.9:1", f"CN={name}"
    return ConsumerAnswer(
        name, PartitionId(1), 30, True, behind, seconds, seconds, (address,), (principal,)
    )


def consumers(*found: ConsumerAnswer, **more: Any) -> ClusterAnswers:
    told = Told(ConsumersTold(found, **more), NOW - 2, fresh_seconds=10.0)
    return replace(cluster(), consumers=told)


def test_consumers_are_shown_once_servers_tell_of_them_the_slowest_first() -> None:
    late = replace(consumer("<orders>", 950, 95.0), lag_most_seconds=99.5)
    left = replace(consumer("gone", 12, 3.2), is_current=False, addresses=(), principals=())
    text = shown(
        "/consumers",
        consumers(consumer("billing", 0, 0.0), late, left, consumer("new", None, None)),
    )
    assert text is not None
    places = [text.index(name) for name in ("new", "&lt;orders&gt;", "gone", "billing")]
    assert places == sorted(places)
    assert "CN=billing" in text
    assert "CN=&lt;orders&gt;" in text
    assert "CN=gone" not in text
    assert "95 s to 100 s" in text
    assert "at most 4 s" in text
    assert "not connected" in text
    assert "up to date" in text
    assert "is behind" in text
    assert "Told" in text


def test_consumers_that_could_not_be_asked_for_are_unknown() -> None:
    late = replace(cluster(), consumers=Told(ConsumersTold(()), NOW - 60, fresh_seconds=10.0))
    text = shown("/consumers", late)
    assert text is not None
    assert "It is not known who is connected: it has not answered for 60 s" in text
    nobody = shown("/consumers", consumers())
    assert nobody is not None
    assert "No client has mounted a partition." in nobody
    part = shown("/consumers", consumers(unasked={"127.0.0.1:7100": "refused"}, is_complete=False))
    assert part is not None
    assert "The clients of server server-1 are not known: refused." in part
    assert "Not all consumers are shown" in part
    assert "No client has mounted" not in part


def test_who_may_be_connected_to_a_silent_server_is_not_said_to_be_gone() -> None:
    left = replace(consumer("orders", 12, 3.2), is_current=False, addresses=(), principals=())
    told = {"unasked": {"127.0.0.1:7100": "refused"}, "is_complete": False}
    text = shown("/consumers", consumers(replace(left, may_be_connected=True), **told))
    assert text is not None
    assert "not known if connected" in text
    assert "nowhere" not in text
    assert "too many" not in text, "one server is silent, which is all that is missing"


def test_a_consumer_whose_marks_cannot_be_read_is_named() -> None:
    text = shown("/consumers", consumers(unread={"<orders>": "no JSON"}))
    assert text is not None
    assert "The marks that are kept of &lt;orders&gt; cannot be read: no JSON." in text
    assert "No client has mounted" not in text


def test_a_search_finds_names_and_their_beginnings() -> None:
    picture = picture_of(cluster(nodes=12, partitions=3))
    assert found_path("storage-1", picture) == "/node/127.0.0.1%3A7200"
    assert found_path("storage-12", picture) == "/node/127.0.0.1%3A7222"
    assert found_path("stor", picture) == "/node/127.0.0.1%3A7200"
    assert found_path("127.0.0.1:7204", picture) == "/node/127.0.0.1%3A7204"
    assert found_path("3", picture) is None, "there are partitions 0 to 2"
    assert found_path("3:", picture) is None
    assert found_path("", picture) is None
    assert found_path("x" * 10_000, picture) is None
