"""The states of a database in a bucket: of two runs one makes the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buckets import bucket_url, object_store
from waltz.archive.archive_target import open_target
from waltz.errors import ConfigurationError, VersionConflictError
from waltz.spark.pipelines import stored_states
from waltz.spark.pipelines.stored_states import STATES, STATES_KEPT, StoredStates

__all__ = ["bucket_url", "object_store"]


def states_of(url: str) -> StoredStates:
    return StoredStates(open_target(url), url)


def test_of_two_copies_of_a_state_one_becomes_the_next(bucket_url: str, tmp_path: Path) -> None:
    one, other = states_of(bucket_url), states_of(bucket_url)
    assert (one.newest(), one.has_newer()) == (0, False)
    one.publish(b"first")
    assert (other.newest(), other.has_newer()) == (1, True)
    other.fetch(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"first"
    other.note_content(b"first as it was opened")
    other.publish(b"first as it was opened")
    assert other.newest() == 1, "nothing has changed"
    one.publish(b"second")
    with pytest.raises(VersionConflictError, match=r"^WALTZ-2016 .*has added to it; run again"):
        other.publish(b"another second")
    other.forget()
    assert other.has_newer()
    other.fetch(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"second"
    for number in range(STATES_KEPT):
        other.publish(b"%d" % number)
    kept = [each.path for each in open_target(bucket_url).list(STATES)]
    assert sorted(kept) == [f"{STATES}/{each:012}.db" for each in range(3, 3 + STATES_KEPT)]


def test_a_put_that_was_answered_too_late_was_ours(bucket_url: str) -> None:
    states = states_of(bucket_url)
    open_target(bucket_url).put(f"{STATES}/{1:012}.db", b"first")
    states.publish(b"first")
    assert not states.has_newer()


def test_a_state_that_is_too_large_is_refused(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_states, "STATE_BYTES_MAX", 5)
    states = states_of(bucket_url)
    states.publish(b"12345")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2015 .*too many transactions were put"):
        states.publish(b"123456")
    assert states.newest() == 1
