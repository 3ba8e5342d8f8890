"""The screen of `waltz top`: the words of the pages, the worst first, and no controls."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from tests.console.hostile import INVISIBLE, MARKUP
from tests.console.served import large
from tests.console.states import cluster
from waltz.console.answers import ClusterAnswers, Told
from waltz.console.picture import picture_of
from waltz.console.screen import screen


def shown(answers: ClusterAnswers, lines_max: int | None = None, width: int = 120) -> str:
    out = StringIO()
    Console(file=out, width=width).print(screen(picture_of(answers), lines_max))
    return out.getvalue()


def test_a_whole_cluster_is_shown_by_name() -> None:
    text = shown(cluster())
    assert "orders" in text
    assert "All 2 partitions take appends on all their replicas." in text
    assert "storage-1" in text
    assert "3 of 3" in text


def test_a_large_cluster_fits_with_the_worst_first() -> None:
    text = shown(large(), 40, 140)
    assert len(text.splitlines()) <= 44
    assert "storage node (" in text
    nodes = text[text.index("storage node (") :]
    assert nodes.index("storage-4") < nodes.index("storage-8")


def test_a_narrow_terminal_has_fewer_columns_and_whole_words() -> None:
    picture = picture_of(cluster())
    out = StringIO()
    Console(file=out, width=80).print(screen(picture, width=80))
    assert "serves its partitions" in out.getvalue()
    assert "write and sync" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_nothing_is_known_before_the_first_answer() -> None:
    text = shown(ClusterAnswers(1.0, Told(None, None, "connection refused")))
    assert "Nothing is known of this cluster" in text


def test_hostile_names_stay_in_their_cell() -> None:
    for name in (*MARKUP, *INVISIBLE, "[red]x[/red]"):
        answers = cluster(name=name, partitions=1)
        text = shown(answers, width=400)
        assert all(each.isprintable() or each == "\n" for each in text)
        assert "The partition takes appends on all its replicas." in text
