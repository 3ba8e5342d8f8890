from __future__ import annotations

from waltz.log_fields import Fields


def test_fields_are_text_in_order_and_values_with_spaces_in_quotes() -> None:
    fields = Fields(partition=3, seconds=1.5, replica="s:1", error="no such thing", note="")
    assert str(fields) == "partition=3 seconds=1.5 replica=s:1 error='no such thing' note=''"
    assert f"{fields}" == "%s" % fields  # noqa: UP031
    assert str(Fields()) == ""
