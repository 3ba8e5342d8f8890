"""The printed page of metrics."""

from __future__ import annotations

from pathlib import Path

from waltz.cli.metrics_document import SECTIONS, page
from waltz.figures import Kind

PAGE = Path(__file__).parents[2] / "docs" / "operating" / "metrics.md"


def test_the_printed_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_every_name_is_there_once_and_says_its_unit() -> None:
    metrics = [each for section in SECTIONS.values() for each in section]
    assert len({each.name for each in metrics}) == len(metrics)
    for each in metrics:
        assert each.name.endswith("_total") == (each.kind is Kind.COUNTER), each.name
        assert each.kind is not Kind.HISTOGRAM or each.name.endswith("_seconds"), each.name
        assert each.meaning.endswith("."), each.name
        assert all(label.bound for label in each.labels), each.name


def test_a_histogram_is_read_by_the_names_of_its_parts() -> None:
    found = {sample for section in SECTIONS.values() for each in section for sample in each.samples}
    assert "waltz_server_append_seconds_bucket" in found
    assert "waltz_server_append_seconds" not in found
    assert "waltz_server_appends_total" in found
