"""Every test runs once in whatever order, and each process begins with what takes long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from xdist.scheduler.worksteal import WorkStealingScheduling

from tests.order import LIGHT_SECONDS, STARTED_ONCE, Collected, group_of, in_order, sizes
from tests.shares import Durations

FILES = st.sampled_from(("tests/a.py", "tests/b.py", "tests/spark/c.py", "tests/spark/d.py"))
TESTS = st.lists(
    st.builds(
        lambda file, number, fixtures: Collected(f"{file}::test_{number}", fixtures),
        FILES,
        st.integers(0, 99),
        st.lists(st.sampled_from(sorted(STARTED_ONCE)), max_size=2),
    ),
    unique_by=lambda each: each.name,
)
SECONDS = st.dictionaries(
    st.builds(lambda file, number: f"{file}::test_{number}", FILES, st.integers(0, 99)),
    st.floats(0, 60),
)


@given(TESTS, SECONDS, st.dictionaries(FILES, st.floats(0, 60)), st.integers(1, 6))
def test_every_test_runs_once_and_those_of_a_group_in_their_order(
    tests: list[Collected], single: dict[str, float], others: dict[str, float], processes: int
) -> None:
    order = in_order(tests, Durations(single=single, others=others), processes)
    assert sorted(order) == list(range(len(tests)))
    for name in {group_of(each) for each in tests}:
        group = [index for index in order if group_of(tests[index]) == name]
        assert group == sorted(group)


def several(file: str, count: int) -> list[Collected]:
    return [Collected(f"{file}::test_{number}") for number in range(count)]


def test_each_process_begins_with_what_takes_long_and_has_quick_ones_at_its_end() -> None:
    tests = [*several("tests/quick.py", 90), *several("tests/a.py", 2), *several("tests/b.py", 2)]
    durations = Durations(others={"tests/a.py": 20.0, "tests/b.py": 15.0, "tests/quick.py": 0.5})
    order = in_order(tests, durations, 2)
    first, second = order[:47], order[47:]
    assert [tests[each].name for each in first[:2]] == ["tests/a.py::test_0", "tests/a.py::test_1"]
    assert [tests[each].name for each in second[:2]] == ["tests/b.py::test_0", "tests/b.py::test_1"]
    assert all(each < 90 for each in (*first[2:], *second[2:]))


def test_a_file_without_records_begins_before_what_is_known_to_be_quick() -> None:
    tests = [*several("tests/quick.py", 90), *several("tests/new.py", 10)]
    order = in_order(tests, Durations(others={"tests/quick.py": 0.5}), 1)
    assert [tests[each].name for each in order[:10]] == [each.name for each in tests[90:]]


def test_what_takes_long_is_dealt_evenly() -> None:
    seconds = {f"tests/{name}.py::test_0": 1.0 + name for name in range(8)}
    tests = [Collected(name) for name in seconds]
    order = in_order(tests, Durations(single=seconds), 2)
    sums = [sum(seconds[tests[each].name] for each in part) for part in (order[:4], order[4:])]
    assert sums == [18.0, 18.0]


def test_what_uses_one_session_of_spark_runs_in_one_process() -> None:
    files = [f"tests/spark/test_{name}.py" for name in range(4)]
    tests = [Collected(f"{file}::test", ("spark", "started_spark")) for file in files]
    tests += several("tests/other.py", 4)
    durations = Durations(single={each.name: 2 * LIGHT_SECONDS for each in tests})
    order = in_order(tests, durations, 2)
    assert order in ([0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1, 2, 3])


def test_a_fixture_of_the_same_name_in_another_folder_is_another_one() -> None:
    assert group_of(Collected("tests/cli/test_a.py::test", ("zookeeper",))) == "tests/cli/test_a.py"
    assert group_of(Collected("tests/system/test_a.py::test", ("zookeeper",))) == "tests/system"


class Process:
    """A process of pytest-xdist as its scheduler sees it."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given += tests


@given(st.integers(8, 200), st.integers(1, 4))
def test_pieces_are_those_that_are_dealt_by_pytest_xdist(count: int, processes: int) -> None:
    scheduler = WorkStealingScheduling.__new__(WorkStealingScheduling)
    nodes = [Process() for _ in range(processes)]
    scheduler.node2pending = {node: [] for node in nodes}
    scheduler.pending = list(range(count))
    scheduler.steal_requested_from_node = None
    scheduler.check_schedule()
    assert [len(node.given) for node in nodes] == sizes(count, processes)
