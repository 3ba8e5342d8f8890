"""Nothing is signed that a power cut may take back; a killed attester goes on."""

from __future__ import annotations

from random import Random

import pytest

from proofs.crash_states import Link, Rename, SyncDirectory
from tests.attest.power_cuts import judge_life, operations_of, recorded, shorten_steps


@pytest.fixture(autouse=True)
def _steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_steps(monkeypatch)


@pytest.mark.parametrize("states", [12, pytest.param(200, marks=pytest.mark.long)])
def test_after_every_power_cut_what_is_signed_is_whole(states: int) -> None:
    assert judge_life(recorded(), states_per_step=states) > 500


@pytest.mark.parametrize("kills", [4, pytest.param(None, marks=pytest.mark.long)])
def test_after_a_kill_and_a_power_cut_what_is_signed_is_whole(kills: int | None) -> None:
    """The attester that goes on finds files that are seen and not durable."""
    count = operations_of(recorded())
    chosen = range(count)
    for dies_at in chosen if kills is None else Random(7).sample(chosen[count // 2 :], kills):
        judge_life(recorded(dies_at), states_per_step=3, from_step=dies_at)


def test_directories_are_synced_once_per_checkpoint_and_before_it() -> None:
    trace = recorded().disk.trace
    published = [
        place
        for place, step in enumerate(trace)
        if isinstance(step, Rename) and step.target.endswith("/checkpoint")
    ]
    assert len(published) == 5
    start = 0
    for place in published:
        steps = trace[start:place]
        linked = [each.target.rpartition("/")[0] for each in steps if isinstance(each, Link)]
        synced = [each.path for each in steps if isinstance(each, SyncDirectory)]
        if start:  # without those of the checkpoint before
            synced = synced[synced.index("/a/attest/3") + 1 :]
        assert set(linked) <= set(synced)
        assert len(synced) == len(set(synced))
        start = place + 1
