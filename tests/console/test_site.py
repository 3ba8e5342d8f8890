"""The pages by their paths, from one picture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.console.states import NOW, cluster
from waltz.console.answers import ClusterAnswers, ConsumerAnswer, Told
from waltz.console.marks_history import MarksHistory
from waltz.console.picture import picture_of
from waltz.console.site import PARTITIONS_PER_PAGE, Site, View, found_path, number_in


def shown(target: str, answers: ClusterAnswers) -> str | None:
    page = Site().page(target, View(1, picture_of(answers), answers, MarksHistory()))
    return None if page is None else page.whole()


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), ("", None), ("-1", None), ("1e3", None), ("٣", None), ("9" * 19, None)],
)
def test_numbers_are_plain_digits(text: str, number: int | None) -> None:
    assert number_in(text) == number


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


def consumer(name: str, lag: float | None, *, is_blocked: bool | None = False) -> ConsumerAnswer:
    lag_ids = None if lag is None else int(lag * 10)
    return ConsumerAnswer(name, 12, "10.0.0.9:4242", 1, 30, lag_ids, lag, 60.0, is_blocked)


def test_consumers_are_shown_once_servers_tell_of_them_the_slowest_first() -> None:
    found = (consumer("billing", 0.0), consumer("<orders>", 95.0, is_blocked=True),
             consumer("new", None, is_blocked=None))  # fmt: skip
    text = shown("/consumers", replace(cluster(), consumers=Told(found, NOW)))
    assert text is not None
    assert text.index("&lt;orders&gt;") < text.index("billing")
    assert "blocked" in text
    assert "not known" in text


def test_consumers_that_could_not_be_asked_for_are_unknown() -> None:
    text = shown("/consumers", replace(cluster(), consumers=Told((), NOW - 60)))
    assert text is not None
    assert "It is not known who is connected: it has not answered for 60 s" in text
    nobody = shown("/consumers", replace(cluster(), consumers=Told((), NOW)))
    assert nobody is not None
    assert "No client has mounted a partition." in nobody


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
