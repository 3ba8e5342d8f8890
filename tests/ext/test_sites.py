"""The applications of docs/frameworks.md, by the servers that run them: nothing that was confirmed
is lost, and every process ends when it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster, wait_until
from tests.ext.sites import SERVERS, Site, free_port, write_sites

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("sites") / "cluster") as running:
        yield running


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, cluster: RunningCluster) -> Iterator[Site]:
    write_sites(tmp_path)
    made = Site(tmp_path, cluster.coordinator, SERVERS[request.param], free_port())
    done = made.manage("migrate", "--run-syncdb", "--verbosity", "0")
    assert done.returncode == 0, done.stderr
    try:
        yield made
    finally:
        made.end()


def expect_nothing_lost(site: Site) -> None:
    """Compare the log with what was confirmed."""
    with waltz.open_reader(site.cluster) as log:
        found = {
            columns.first_transaction_id + place: bytes(data).decode()
            for columns in log.read(0, 0, log.high_water_mark(0) + 1)
            for place, data in enumerate(columns.data)
        }
    lost = {number: text for number, text in site.confirmed.items() if found.get(number) != text}
    assert not lost


def strike(site: Site, cluster: RunningCluster, random: Random) -> None:
    """Do one of what happens to a server: a worker is killed, or all of it; it is stopped and
    started again; a file of the project changes; the cluster's server is killed."""
    reloads = "--reload" in site.server or "runserver" in site.server
    match random.choice(["a worker", "all", "stop", "change", "cluster"]):
        case "change" if reloads:
            before = site.members()
            for name in ("notes_api.py", "site_urls.py"):
                path = site.folder / name
                path.write_text(f"{path.read_text()}\n# changed\n")
            wait_until(lambda: site.members() != before, "it is not loaded again")
            site.wait_until_answered()
        case "a worker" if not reloads:  # who starts it again is the server
            site.kill_a_worker(random)
        case "cluster":
            cluster.kill_and_await(random.choice(cluster.names("server")))
        case "all":
            site.end()
            site.start()
        case _:
            site.stop()
            site.start()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("site", "strikes"),
    [
        *((name, 2) for name in ("gunicorn preload", "django gunicorn preload")),
        *(pytest.param(name, 50, marks=pytest.mark.long) for name in SERVERS),
    ],
    indirect=["site"],
)
def test_nothing_confirmed_is_lost_and_no_end_hangs(
    site: Site, cluster: RunningCluster, strikes: int
) -> None:
    random = Random(strikes)
    site.start()
    with site.adding():
        for _ in range(strikes):
            site.wait_for_more()
            strike(site, cluster, random)
        site.wait_for_more()
    number, text = max(site.confirmed.items())
    reply = site.ask("POST", "/notes?text=last")
    token = reply.headers["Waltz-Token"]
    wait_until(lambda: site.ask("GET", f"/notes/{number}", token).status == 200, site.said())
    assert text in site.ask("GET", f"/notes/{number}", token).text
    site.stop()
    expect_nothing_lost(site)
    assert set(site.statuses) <= {201, 503}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("site", ["uvicorn", "django gunicorn"], indirect=True)
def test_while_the_cluster_is_away_requests_are_answered(site: Site, tmp_path: Path) -> None:
    """Also by workers that start then; and all is well once it is back."""
    where = ("--port", str(free_port()))
    with running_cluster(tmp_path / "own", *where) as own:
        site.cluster = own.coordinator
        site.start()
        site.add("before")
        ((number, _),) = site.confirmed.items()
        wait_until(lambda: site.ask("GET", f"/notes/{number}").status == 200, site.said())
    for _ in range(2):
        reply = site.ask("POST", "/notes?text=away")
        assert (reply.status, reply.headers["Retry-After"]) == (503, "1"), site.said()
        assert site.ask("GET", f"/notes/{number}").status == 200, "the database is there"
        site.stop()
        site.start()
    with running_cluster(tmp_path / "own", *where):
        site.wait_until_answered()
        with site.adding(1):
            site.wait_for_more(1)
        site.stop()
        expect_nothing_lost(site)
