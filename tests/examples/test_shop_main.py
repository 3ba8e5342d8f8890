"""`python -m examples.shop`: what it refuses, and how it shows what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.shop.__main__ import NOT_RUN, main, show
from examples.shop.trial.waltz_trial import Result


def test_a_directory_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--directory", str(tmp_path)]) == NOT_RUN
    assert "give a new --directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--bug"], ["--orders", "0"], ["--customers", "-1"]])
def test_what_makes_no_sense_is_refused_before_anything_starts(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(("wrong", "verdict"), [([], "all right"), (["stock below zero"], "WRONG")])
def test_the_verdict_is_the_last_word(
    wrong: list[str], verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result(
        orders=2, seconds=1.0, settling_seconds=0.5, states={"paid": 2}, kills={"orders": 1},
        counts={"orders": 2}, post_milliseconds={"p50": 3.21}, transactions=5, checked=9,
        wrong=wrong,
    )  # fmt: skip
    show(result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"9 checks: {verdict}"
    assert [line for line in lines if "below zero" in line] == [
        f"  WRONG: {each}" for each in wrong
    ]
