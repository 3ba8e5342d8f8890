"""Wall times as applications have them, and as journals do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import LocalProtocolError
from waltz.wall_time import milliseconds_of, time_at


@given(st.datetimes(timezones=st.timezones()))
def test_a_time_becomes_the_last_millisecond_that_is_not_after_it(moment: datetime) -> None:
    found = time_at(milliseconds_of(moment))
    assert found is not None
    assert found.tzinfo is UTC
    assert timedelta(0) <= moment - found < timedelta(milliseconds=1)


def test_a_time_of_another_zone_is_the_same_time() -> None:
    zone = timezone(timedelta(hours=2))
    assert milliseconds_of(datetime(1970, 1, 1, 2, 0, 1, tzinfo=zone)) == 1_000


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="has no time zone; give one"):
        milliseconds_of(datetime(2026, 1, 1))


def test_times_that_no_calendar_has_are_unknown() -> None:
    assert time_at(None) is None
    assert time_at(1 << 62) is None
