"""The keys of an outbox's relay."""

from __future__ import annotations

import pytest

from waltz.configuration.outbox_settings import (
    CLUSTER,
    DATABASE,
    EVERY,
    PARTITION_COUNT,
    ROWS,
    TABLE,
    TAKE_OVER,
    outbox_settings,
)
from waltz.configuration.settings import Given, Settings
from waltz.errors import ConfigurationError
from waltz.types import ServersAddress


def judged(**values: object) -> Settings:
    given = {"outbox.cluster": "waltz://a.example:1,b.example:2"} | {
        f"outbox.{name}": value for name, value in values.items()
    }
    return outbox_settings({name: Given(value, "file") for name, value in given.items()})


def test_what_is_not_set_has_a_default() -> None:
    settings = judged()
    assert isinstance(settings[CLUSTER], ServersAddress)
    assert (settings[TABLE], settings[ROWS]) == ("waltz_outbox", 500)
    assert (settings[EVERY], settings[TAKE_OVER]) == (0.2, 10.0)
    assert settings.get(PARTITION_COUNT) is None
    assert settings.get(DATABASE) is None


def test_the_password_of_a_database_is_not_shown() -> None:
    shown = "\n".join(judged(database="postgresql+psycopg://u:geheim@h/d").lines())
    assert "outbox.database" in shown
    assert "geheim" not in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cluster", "nowhere"),
        ("cluster", 3),
        ("partitionCount", 0),
        ("rows", 0),
        ("rows", 5_001),
        ("every", 0),
        ("takeOver", 0.1),
        ("httpAddress", "x"),
        ("table", ""),
    ],
)
def test_other_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"outbox.{name}"):
        judged(**{name: value})
