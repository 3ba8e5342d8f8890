"""A page's view of the cluster, and the frame that all pages have.

Owns which values a page may show, and when its rows have changed so that it is loaded anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from waltz.console.answers import ClusterAnswers, Told
from waltz.console.inquiries import Inquiry
from waltz.console.marks_history import MarksHistory
from waltz.console.pages import NAVIGATION, Rendered, render
from waltz.console.picture import ClusterPicture

NUMBER_DIGITS_MAX: Final = 18
"""Digits of a number in a path or a form."""


def nothing_told(question: Inquiry) -> Told[Any]:
    return Told()


@dataclass(frozen=True, slots=True)
class View:
    """A picture with its number, the answers that it was made from, and the rates before it.

    `told` returns what single pages have inquired, and has it asked again if it is old; `known`
    returns it without. `lock_names` are the names under which locks are shown; `wall_milliseconds`
    is the time of this machine."""

    number: tuple[int, int]
    picture: ClusterPicture
    answers: ClusterAnswers
    history: MarksHistory
    told: Callable[[Inquiry], Told[Any]] = nothing_told
    known: Callable[[Inquiry], Told[Any]] = nothing_told
    lock_names: tuple[str, ...] = ()
    wall_milliseconds: int = 0


def number_in(text: str) -> int | None:
    """Return the number that `text` is; None: it is none, or too long."""
    is_number = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if is_number else None


def page_of(
    template: str,
    section: str,
    events: str,
    picture: ClusterPicture,
    *,
    rows: object = (),
    **context: Any,
) -> Rendered:
    """Return a page; `events` is the path of its stream, empty if it has none; `rows` are the
    things that have a row of their own."""
    return render(
        template,
        _layout(picture, rows),
        cluster_name=picture.name,
        navigation=NAVIGATION,
        section=section,
        events=events,
        picture=picture,
        **context,
    )


def _layout(picture: ClusterPicture, more: object) -> str:
    """Return a text that changes when rows come or go."""
    parts = (
        picture.cluster_key,
        len(picture.partitions),
        *(each.address for each in picture.servers),
        *(each.replica_id for each in picture.nodes),
        more,
    )
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()
