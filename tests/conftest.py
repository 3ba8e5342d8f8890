"""What holds for all tests, and the options that choose and record them."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from tests.order import Collected, in_order
from tests.shares import Durations, in_share, printed, read_durations, renewed, share_from

if TYPE_CHECKING:
    from tests.bridge.kafka_broker import KafkaBroker

# How long an example takes, or its making, depends on the machine and not on what is tested.
settings.register_profile("waltz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("waltz")

# A shell without job control starts what runs in its background with this signal ignored, and every
# process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers_as_they_were() -> Iterator[None]:
    """A test that leaves a signal ignored breaks whichever test sends that signal later."""
    before = [_handler_of(number) for number in ENDING_SIGNALS]
    yield
    assert [_handler_of(number) for number in ENDING_SIGNALS] == before


def _handler_of(number: int) -> object:
    """Return the signal's handler. That of a session of Spark, which interrupts as well, counts as
    Python's own: a session leaves it, and asyncio, when it gives up a handler, replaces it."""
    found = signal.getsignal(number)
    is_spark = getattr(found, "__module__", "").startswith("pyspark.")
    return signal.default_int_handler if is_spark else found


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("waltz")
    group.addoption("--share", type=share_from, help="only the long tests of a share, or 'now'")
    group.addoption("--record-durations", type=Path, help="renew tests/durations.tsv in a file")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    share, file = config.getoption("--share"), config.getoption("--record-durations")
    if share is not None:
        print(f"the long tests of share {share}: make test-share SHARE={share} runs them again")
    if file is not None:
        is_whole = (
            config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.markexpr
        )
        config.pluginmanager.register(Recorder(file, Durations() if is_whole else read_durations()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: what is collected stays until the end, and neither the
    collection nor any test has to walk through thousands of tests to find no garbage there."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("--share")
    if share is None:
        return
    long = [each.nodeid for each in items if each.get_closest_marker("long")]
    chosen = set(in_share(long, share, read_durations().long))
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid not in chosen])
    items[:] = [each for each in items if each.nodeid in chosen]


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests in the order in which several processes run them."""
    if not hasattr(config, "workerinput"):
        return
    tests = [Collected(each.nodeid, getattr(each, "fixturenames", ())) for each in items]
    order = in_order(tests, read_durations(), config.workerinput["workercount"])
    items[:] = [items[each] for each in order]


class Recorder:
    """Records how long each test took, with what was started for it, when the run ends."""

    def __init__(self, file: Path, before: Durations) -> None:
        """`before` are the durations of the tests that do not run."""
        self._file = file
        self._before = before
        self._seconds: dict[str, float] = {}
        self._long: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if "long" in report.keywords:
            self._long.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._file.write_text(printed(renewed(self._before, self._seconds, self._long)))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker of Kafka for all tests of bridges; each test has topics of its own."""
    # Most processes of a run have no such test, and need no driver.
    from tests.bridge.kafka_broker import running_broker

    with running_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
