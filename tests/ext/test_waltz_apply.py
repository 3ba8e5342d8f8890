"""`manage.py waltz_apply` as a process: it applies, and ends when it is told to."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster, wait_until
from tests.ext.sites import SERVERS, SETTINGS, Site
from waltz.client.applying.callbacks import NoCallbacks

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path / "cluster") as running:
        yield running


def site_of(sites: Path, folder: Path, cluster: str) -> Site:
    shutil.copytree(sites, folder, dirs_exist_ok=True)
    return Site(folder, cluster, SERVERS["django runserver"], 0)


def texts(site: Site) -> list[str]:
    with closing(sqlite3.connect(site.folder / "notes.db", timeout=60)) as database:
        return [text for (text,) in database.execute("SELECT text FROM notes_note ORDER BY id")]


def test_the_log_is_applied_until_a_signal_comes(
    tmp_path: Path, sites: Path, cluster: RunningCluster
) -> None:
    site = site_of(sites, tmp_path, cluster.coordinator)
    with waltz.open_client(cluster.coordinator, NoCallbacks()) as client:
        client.append(0, b"one")
        done = site.run("manage.py", "waltz_apply", "--until-applied", "60")
        assert (done.returncode, done.stdout) == (0, "applied\n"), done.stderr
        assert texts(site) == ["one"]
        process = subprocess.Popen(
            [sys.executable, "manage.py", "waltz_apply"],
            cwd=site.folder, env=site.environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "following\n"
        client.append(0, b"two")
        wait_until(lambda: texts(site) == ["one", "two"], "it is not applied")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_cluster_that_is_away_is_waited_for_and_a_signal_obeyed(
    tmp_path: Path, sites: Path
) -> None:
    site = site_of(sites, tmp_path, "waltz://127.0.0.1:1")
    with (tmp_path / SETTINGS).open("a") as settings:
        settings.write('WALTZ["OPTIONS"]["connection_seconds_max"] = 0.1\n')
    done = site.run("manage.py", "waltz_apply", "--until-applied", "1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    process = subprocess.Popen(
        [sys.executable, "manage.py", "waltz_apply"],
        cwd=site.folder, env=site.environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "the log cannot be reached, trying again" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stderr.close()
