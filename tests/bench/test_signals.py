"""Signals that end a measurement. What they leave behind: `tests/cli/test_bench.py`."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from waltz.bench.signals import ENDING, ended_in_order


@pytest.fixture(autouse=True)
def _nothing_ignored() -> Iterator[None]:
    """Under `nohup` SIGHUP is ignored; here a signal is as a shell leaves it."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_ends_the_block_and_no_other_cuts_its_end_short(number: int) -> None:
    former = [signal.getsignal(each) for each in ENDING]
    ended = []

    def work() -> None:
        with ended_in_order():
            try:
                signal.raise_signal(number)
            finally:
                for each in ENDING:
                    signal.raise_signal(each)
                ended.append(number)

    with pytest.raises(SystemExit) as found:
        work()
    assert found.value.code == 128 + number
    assert ended == [number]
    assert [signal.getsignal(each) for each in ENDING] == former


def test_a_signal_that_was_ignored_before_stays_so() -> None:
    """As `nohup` starts a program."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_in_order():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)
