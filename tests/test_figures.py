from __future__ import annotations

from waltz.figures import Metric, counter, gauge


def test_figures_read_a_state_and_say_whether_they_only_grow() -> None:
    length: Metric[str] = gauge("length", "How long it is.", len)
    total: Metric[str] = counter("total", "How much there was.", len)
    assert (length.value("abc"), length.is_counter) == (3, False)
    assert (total.value(""), total.is_counter) == (0, True)
