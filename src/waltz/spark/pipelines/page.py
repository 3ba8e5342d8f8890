"""Pages of HTML that need nothing else: figures, drawings and tables in one file.

Owns their appearance; knows nothing of their content.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

INK: Final = "#22303c"
QUIET: Final = "#8a97a3"
BLUE: Final = "#2f6db3"
RED: Final = "#c8452f"
GREEN: Final = "#2e7d4f"
SAND: Final = "#d9a441"

STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "waltz",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6eaee",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
"""Letters stay letters in the drawing, in the reader's own font."""

PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  body {{ margin: 3rem auto; max-width: 60rem; padding: 0 1.5rem; color: {ink};
    font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
  h1 {{ font-size: 2rem; letter-spacing: -.02em; margin: 0 0 .25rem; }}
  h2 {{ font-size: 1.15rem; margin: 2.5rem 0 .5rem; }}
  p {{ max-width: 42rem; }}
  .quiet {{ color: {quiet}; }}
  dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem;
    margin: 1.5rem 0; }}
  dl div {{ border-left: 3px solid {blue}; padding-left: .75rem; }}
  dt {{ color: {quiet}; font-size: .85rem; }}
  dd {{ margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }}
  svg {{ width: 100%; height: auto; }}
  svg text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif !important; }}
  table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
  th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #e6eaee; }}
  th:first-child, td:first-child {{ text-align: left; }}
  th {{ font-weight: 600; font-size: .85rem; color: {quiet}; }}
  .brand {{ color: {blue}; font-weight: 700; letter-spacing: .18em; font-size: .8rem;
    text-transform: uppercase; margin: 0 0 .75rem; }}
  .verdict {{ border: 1px solid {green}; border-left: 6px solid {green}; border-radius: 6px;
    padding: .9rem 1.2rem; margin: 1.5rem 0; background: #f2f8f4; }}
  .verdict b {{ color: {green}; font-size: 1.15rem; }}
  .verdict p {{ margin: .2rem 0 0; }}
  .cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr));
    gap: 1rem; }}
  .cards div {{ border: 1px solid #e6eaee; border-radius: 6px; padding: .9rem 1.1rem; }}
  .cards p {{ margin: .35rem 0; font-size: .9rem; color: {quiet}; }}
  .cards .result {{ color: {green}; font-weight: 600; }}
  .story {{ list-style: none; margin: 1rem 0; padding: 0; border-left: 2px solid #dfe5ea; }}
  .story li {{ position: relative; padding: .3rem 0 .3rem 7.5rem; }}
  .story li::before {{ content: ""; position: absolute; left: -6px; top: .85rem; width: 10px;
    height: 10px; border-radius: 50%; background: {blue}; }}
  .story li.alarm::before {{ background: {red}; }}
  .story time {{ position: absolute; left: 1.2rem; color: {quiet};
    font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
<p class="brand">Waltz</p>
<h1>{title}</h1>
<p class="quiet">{subtitle}</p>
{content}
</body>
</html>
"""


def page(title: str, subtitle: str, content: Iterable[str]) -> str:
    """Return a page of the parts that `section`, `definitions` and `table` return."""
    return PAGE.format(
        ink=INK,
        quiet=QUIET,
        blue=BLUE,
        red=RED,
        green=GREEN,
        title=escape(title),
        subtitle=escape(subtitle),
        content="\n".join(content),
    )


def section(title: str, text: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2>\n<p class="quiet">{escape(text)}</p>\n{content}'


def definitions(facts: Iterable[tuple[str, str]]) -> str:
    items = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return f"<dl>{''.join(items)}</dl>"


def verdict(text: str, detail: str) -> str:
    """Return the proved statement, for the top of a page."""
    return f'<div class="verdict"><b>\u2713 {escape(text)}</b><p>{escape(detail)}</p></div>'


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """Return a card per item: its title, its text, and its result."""
    shown = (
        f'<div><b>{escape(title)}</b><p>{escape(text)}</p><p class="result">{escape(result)}</p>'
        "</div>"
        for title, text, result in items
    )
    return f'<div class="cards">{"".join(shown)}</div>'


def timeline(moments: Iterable[tuple[float, str, bool]]) -> str:
    """Return a list of moments: seconds since the start, text, and whether it was a fault."""
    shown = (
        f'<li class="alarm"><time>{seconds:.1f} s</time>{escape(text)}</li>'
        if alarm
        else f"<li><time>{seconds:.1f} s</time>{escape(text)}</li>"
        for seconds, text, alarm in moments
    )
    return f'<ul class="story">{"".join(shown)}</ul>'


def drawing(draw: Callable[[Any], None], *, height: float = 3.2) -> str:
    """Return an SVG element with what `draw` draws into its axes."""
    target = io.StringIO()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(figure.subplots())
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others are figures."""
    lines = ["<tr>" + "".join(f"<th>{escape(each)}</th>" for each in heading) + "</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows
    ]
    return f"<table>{''.join(lines)}</table>"
