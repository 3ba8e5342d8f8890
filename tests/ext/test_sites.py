"""The applications of docs/frameworks.md, by the servers that run them: nothing that was confirmed
is lost, and every process ends when it is told to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster, wait_until
from tests.ext.sites import (
    COMMANDS,
    FASTAPI,
    MAKES_PROJECT,
    MAKES_TABLES,
    PAGE,
    PROGRAMS,
    SERVERS,
    SETTINGS,
    Site,
    free_port,
)  # fmt: skip

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("sites") / "cluster") as running:
        yield running


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, sites: Path, cluster: RunningCluster
) -> Iterator[Site]:
    shutil.copytree(sites, tmp_path, dirs_exist_ok=True)
    made = Site(tmp_path, cluster.coordinator, SERVERS[request.param], free_port())
    if not request.param.startswith("django"):  # it makes its table itself
        (tmp_path / "notes.db").unlink()
        done = made.run(FASTAPI)
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
            for name in (FASTAPI, SETTINGS):
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


def test_each_command_of_the_page_is_one_that_these_tests_run() -> None:
    """`make_sites` makes the project and the tables; the servers serve what the page names."""
    made = [each for each in COMMANDS if each.startswith((*MAKES_PROJECT, *MAKES_TABLES))]
    assert made == [
        "django-admin startproject notes_site .",
        "python manage.py startapp notes",
        "python manage.py makemigrations notes",
        "python manage.py migrate",
    ]
    others = [each for each in COMMANDS if each not in made]
    served = [each.split() for each in others if each.split()[0] in ("uvicorn", "gunicorn")]
    for command in served:
        assert any(set(command[:1] + command[1:]) <= set(server) for server in SERVERS.values())
    assert [each for each in others if each.split() not in served] == [
        "pip install '.[fastapi,sql]'",
        "pip install gunicorn uvicorn uvicorn-worker",
        "export WALTZ_CLUSTER=127.0.0.1:7100 NOTES_DATABASE=sqlite:///notes.db",
        f"python {FASTAPI}",
        "curl -X POST '127.0.0.1:8000/notes?text=one'",
        "python manage.py runserver",
        "curl -X POST '127.0.0.1:8000/notes?text=one'",
        "python manage.py waltz_apply",
        "python manage.py waltz_apply --until-applied 60",
    ]
    said = re.findall(r"^\$ curl .*\n(.*)$", PAGE, re.MULTILINE)
    assert said == ['{"id":0}', '{"id": 0}'], "what the tests of servers look for"
    assert len(PROGRAMS) == 6


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("site", "strikes"),
    [
        ("gunicorn preload", 1),
        ("django gunicorn preload", 2),
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
