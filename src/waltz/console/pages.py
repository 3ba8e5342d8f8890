"""The pages, rendered on the server from templates and values.

Owns how parts of a page move: a *value* is a piece of text with a key, a *region* is a piece of
HTML with an ID. A page is rendered as a whole once a round; a viewer's stream then carries the
values and regions that differ from those it has sent. The templates escape everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from waltz.console.answers import ConsumerAnswer
from waltz.console.figure_text import (
    age_text,
    bounds_text,
    count_text,
    mark_text,
    milliseconds_text,
    rate_text,
    seconds_text,
    size_text,
    span_text,
)
from waltz.console.picture import Health
from waltz.console.plain_text import plain

START, END = "\ufdd0", "\ufdd1"
"""Marks around a value's key in a rendered page: characters that are none, and that `plain` shows
as escapes."""

VALUE: Final = re.compile(f"{START}([^{START}{END}]*){END}")

GLYPHS: Final = {
    "current": "●",
    "behind": "◐",
    "recovering": "◔",
    "damaged": "◆",
    "refusing": "▲",
    "silent": "○",
    "absent": "✕",
    "unknown": "?",
}
"""The signs of replicas on the map, by their standing."""

MEANINGS: Final = {
    "current": "holds every commit",
    "behind": "is catching up",
    "recovering": "is being recovered",
    "damaged": "has damaged records",
    "refusing": "refuses appends",
    "silent": "does not answer its server",
    "absent": "takes no part",
    "unknown": "not known",
}


BEHIND_SECONDS: Final = 10.0
"""A consumer that is known to be this far behind is shown as such; a lag below comes and goes."""


@dataclass(slots=True)
class Rendered:
    """A page: `html` with places for values; `regions` and `values` by their IDs and keys; `layout`
    changes when the page must be loaded anew."""

    html: str
    layout: str
    regions: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    charts: dict[str, Any] = field(default_factory=dict)
    status: int = 200

    def whole(self) -> str:
        """Return the page with its values in place."""
        return self._filled(self.html)

    def region(self, name: str) -> str:
        return self._filled(self.regions[name])

    def _filled(self, html: str) -> str:
        return VALUE.sub(lambda found: str(escape(self.values.get(found[1], ""))), html)


@dataclass(slots=True)
class Sent:
    """The parts of a page that a viewer has, as they were sent last."""

    layout: str = ""
    regions: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    def changes(self, page: Rendered) -> dict[str, Any]:
        """Return the differences to `page`, and take them for sent."""
        if self.layout and self.layout != page.layout:
            self.layout = page.layout
            return {"reload": True}
        self.layout = page.layout
        regions = {
            name: page.region(name)
            for name, html in page.regions.items()
            if self.regions.get(name) != html
        }
        values = {key: text for key, text in page.values.items() if self.values.get(key) != text}
        self.regions, self.values = dict(page.regions), dict(page.values)
        return {"regions": regions, "values": values, "charts": page.charts}


@cache
def environment() -> Environment:
    """Return the templates of this package."""
    found = Environment(
        loader=PackageLoader("waltz.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "count": count_text,
        "mark": mark_text,
        "rate": rate_text,
        "age": age_text,
        "seconds": seconds_text,
        "size": size_text,
        "milliseconds": milliseconds_text,
        "bounds": bounds_text,
        "plain": plain,
    }
    found.globals |= {
        "glyphs": GLYPHS,
        "meanings": MEANINGS,
        "consumer_state": consumer_state,
        "consumer_lag": consumer_lag,
    }
    return found


def render(template: str, layout: str = "", **context: Any) -> Rendered:
    """Return the page of `template`. Anything in `context` is escaped when it is shown."""
    page = Rendered("", layout)

    def live(key: str, text: object) -> Markup:
        """Show a value that moves."""
        page.values[key] = str(text)
        return Markup('<span data-live="{}">{}{}{}</span>').format(key, START, key, END)

    def region(name: str, element: str = "", *, caller: Callable[[], str]) -> Markup:
        """Show a part that is replaced as a whole when anything in it but a value changes; in an
        element of its own, or in the one with the region's name as its ID."""
        page.regions[name] = str(caller())
        inner = Markup(page.regions[name])  # noqa: S704 made by a template, which has escaped it
        if not element:
            return inner
        return Markup('<{} data-region="{}">{}</{}>').format(element, name, inner, element)

    def chart(name: str, points: Any) -> Markup:
        page.charts[name] = points
        return Markup("")

    found = environment().get_template(template)
    page.html = found.render(live=live, region=region, chart=chart, **context)
    return page


def consumer_lag(consumer: ConsumerAnswer) -> str:
    """Return how far a consumer is behind by time."""
    if consumer.is_current and consumer.lag_transactions == 0:
        return "0 s"
    return span_text(
        consumer.lag_least_seconds, consumer.lag_most_seconds, is_current=consumer.is_current
    )


def consumer_state(consumer: ConsumerAnswer) -> tuple[Health, str]:
    """Return how a consumer stands, and in which words."""
    if consumer.may_be_connected:
        return Health.UNKNOWN, "not known if connected"
    if not consumer.addresses:
        return Health.IMPAIRED, "not connected"
    if consumer.lag_transactions is None or not consumer.is_current:
        return Health.UNKNOWN, "not known how far"
    if (consumer.lag_least_seconds or 0.0) >= BEHIND_SECONDS:
        return Health.IMPAIRED, "is behind"
    return Health.WELL, "follows" if consumer.lag_transactions else "up to date"


def chart_points(points: Any, now: float) -> tuple[list[float], list[float]]:
    """Return the columns of a chart: seconds before now, negative, and rates."""
    return [round(at - now, 1) for at, _ in points], [round(rate, 2) for _, rate in points]


NAVIGATION: Final[Mapping[str, str]] = {
    "/": "Cluster",
    "/nodes": "Storage",
    "/consumers": "Consumers",
    "/locks": "Locks",
    "/pipelines": "Pipelines",
    "/tail": "Tail",
    "/transaction": "Transaction",
}
