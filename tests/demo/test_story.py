"""The story of a run: what is shown at once, and what is kept for the report."""

from __future__ import annotations

from demo.story import Moment, Story


def test_each_moment_is_shown_as_it_is_told_and_kept() -> None:
    now = 100.0
    shown: list[str] = []
    story = Story(shown.append, lambda: now)
    story.tell("cluster", "is up")
    now = 107.25
    story.mention("flights", "7 of 9")
    story.tell("kill", "storage-1 killed")
    assert shown == [
        "   0.0 s  cluster   is up",
        "   7.2 s  flights   7 of 9",
        "   7.2 s  kill      storage-1 killed",
    ]
    assert story.moments == [
        Moment(0.0, "cluster", "is up"),
        Moment(7.25, "kill", "storage-1 killed"),
    ]
