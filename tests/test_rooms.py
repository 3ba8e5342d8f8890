"""A change concerns the right tests, the most relevant first; nothing is left out in silence."""

from __future__ import annotations

from tests.rooms import LAWS, choose, imported, importers, own_tests, relevance, told
from tests.shares import Durations

SOURCES = {
    "src/waltz/__init__.py": "",
    "src/waltz/__init__.pyi": "from .client.client_shell import Client",
    "src/waltz/record.py": "",
    "src/waltz/wire/message.py": "from waltz.record import Record",
    "src/waltz/client/client_shell.py": "from waltz.wire import message",
    "tests/conftest.py": "from tests.shares import share_of",
    "tests/shares.py": "",
    "tests/test_record.py": "from waltz.record import Record",
    "tests/wire/test_message.py": "import waltz.wire.message",
    "tests/wire/test_frames.py": "from waltz.wire.message import decode",
    "tests/client/test_client_shell.py": "import waltz",
    "tests/client/servers.py": "def f():\n    from waltz.record import Record",
    "tests/client/test_far.py": 'from tests.client import servers\nPAGE = "tutorial.md"',
    "tests/test_tidy.py": "",
}


def test_the_test_file_of_a_changed_module_comes_first_then_those_that_import_it() -> None:
    ranks = relevance(["src/waltz/record.py"], SOURCES)
    assert ranks == {
        "tests/test_tidy.py": -1,
        "tests/test_record.py": 0,
        "tests/wire/test_message.py": 2,
        "tests/wire/test_frames.py": 3,
        "tests/client/test_far.py": 3,
        "tests/client/test_client_shell.py": 4,
    }


def test_the_topics_of_a_module_s_tests_come_with_its_test_file() -> None:
    sources = {
        "src/waltz/server/feed.py": "",
        "src/waltz/server/feed_cache.py": "",
        "tests/server/test_feed.py": "",
        "tests/server/test_feed_reads.py": "",
        "tests/server/test_feed_cache.py": "",
    }
    assert relevance(["src/waltz/server/feed.py"], sources) == {
        "tests/server/test_feed.py": 0,
        "tests/server/test_feed_reads.py": 0,
    }


def test_a_changed_test_file_concerns_itself() -> None:
    ranks = relevance(["tests/wire/test_frames.py"], SOURCES)
    assert ranks == {"tests/test_tidy.py": -1, "tests/wire/test_frames.py": 0}


def test_a_page_concerns_the_tests_that_name_it() -> None:
    ranks = relevance(["docs/tutorial.md"], SOURCES)
    assert ranks == {"tests/test_tidy.py": -1, "tests/client/test_far.py": 0}


def test_a_file_that_nobody_names_concerns_the_tests_of_its_folder() -> None:
    ranks = relevance(["tests/wire/frames.txt"], SOURCES)
    assert ranks.keys() - LAWS == {"tests/wire/test_message.py", "tests/wire/test_frames.py"}


def test_a_page_that_no_test_names_concerns_the_laws() -> None:
    assert relevance(["NEWS.md"], SOURCES) == {"tests/test_tidy.py": -1}


def test_all_tests_depend_on_the_conftest_above_them() -> None:
    ranks = relevance(["tests/shares.py"], SOURCES)
    assert {path for path in SOURCES if "/test_" in path} == ranks.keys()


def test_a_deleted_module_concerns_the_laws() -> None:
    assert relevance(["src/waltz/gone.py"], SOURCES) == {"tests/test_tidy.py": -1}


def test_a_test_that_uses_the_public_names_imports_what_the_stub_lists() -> None:
    found = importers(SOURCES)
    assert found["src/waltz/client/client_shell.py"] == {"src/waltz/__init__.py"}
    assert found["src/waltz/__init__.py"] >= {"tests/client/test_client_shell.py"}


def test_relative_imports_are_resolved() -> None:
    assert imported("src/waltz/wire/message.py", "from . import frames") == {
        "waltz.wire",
        "waltz.wire.frames",
    }
    assert "waltz.record.Record" in imported(
        "src/waltz/wire/message.py", "from ..record import Record"
    )


def test_a_module_in_a_folder_of_a_room_has_either_name_of_a_test_file() -> None:
    assert own_tests("src/waltz/server/feeding/feed.py") == {
        "tests/server/test_feeding_feed.py",
        "tests/server/test_feed.py",
    }
    assert own_tests("proofs/model/store.py") >= {"tests/proofs/test_model_store.py"}
    assert own_tests("src/waltz/record.py") == {"tests/test_record.py"}


DURATIONS = Durations(
    long={"tests/a/test_far.py::test_sweep": 60.0},
    single={
        "tests/a/test_own.py::test_slow": 8.0,
        "tests/a/test_own.py::test_quick": 1.0,
        "tests/a/test_near.py::test_one": 2.0,
        "tests/a/test_far.py::test_one": 5.0,
    },
    others={"tests/a/test_own.py": 0.4, "tests/a/test_near.py": 0.4, "tests/a/test_far.py": 0.4},
)
RANKS = {"tests/a/test_own.py": 0, "tests/a/test_near.py": 1, "tests/a/test_far.py": 1}


def test_everything_is_run_if_it_fits() -> None:
    choice = choose(RANKS, DURATIONS, frozenset(), 100)
    assert choice.files == ["tests/a/test_own.py", "tests/a/test_near.py", "tests/a/test_far.py"]
    assert (choice.left_out, choice.not_run) == ({}, {})


def test_of_a_file_that_does_not_fit_the_quick_tests_are_run() -> None:
    choice = choose(RANKS, DURATIONS, frozenset(), 4.2)
    assert choice.files == ["tests/a/test_own.py", "tests/a/test_near.py"]
    assert choice.left_out == {"tests/a/test_own.py::test_slow": 8.0}
    assert [*choice.not_run] == ["tests/a/test_far.py"]
    assert choice.seconds <= 4.2


def test_the_start_of_spark_is_counted_once() -> None:
    both = frozenset({"tests/a/test_own.py", "tests/a/test_near.py"})
    assert choose(RANKS, DURATIONS, both, 32).not_run.keys() == {"tests/a/test_far.py"}
    assert choose(RANKS, DURATIONS, frozenset(), 32).not_run == {}
    assert [*choose(RANKS, DURATIONS, both, 15).not_run] == [
        "tests/a/test_own.py",
        "tests/a/test_near.py",
    ]


def test_what_is_left_out_is_told() -> None:
    choice = choose(RANKS, DURATIONS, frozenset(), 4.2)
    assert told(choice, DURATIONS.long) == [
        "not run, make test runs them:",
        "  tests/a/test_own.py::test_slow (8.0 s)",
        "  tests/a: test_far.py (6 s)",
        "not run, make test-all runs them: 1 long tests of these files (60 s)",
    ]
    assert told(choose(RANKS, DURATIONS, frozenset(), 100), {}) == []


def test_a_file_without_recorded_durations_is_run() -> None:
    choice = choose({"tests/test_new.py": 0}, DURATIONS, frozenset(), 5)
    assert choice.files == ["tests/test_new.py"]


def test_the_laws_are_there() -> None:
    assert relevance([], dict.fromkeys(LAWS, "")) == dict.fromkeys(LAWS, -1)
