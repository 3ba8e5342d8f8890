"""`waltz migrate convert-config` and `convert-tls`: the processes accept what they write."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.cli.original_site import Site
from tests.clusters import run_tool
from tests.shares import one_in


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("role", one_in(2, ["server", "storage"]))
def test_a_converted_file_with_converted_stores_is_accepted_by_the_process(
    site: Site, role: str
) -> None:
    site.write()
    file, pems, new = (site.directory / name for name in (f"waltz-{role}.yml", "pem", "new.yml"))
    written = run_tool("migrate", "convert-tls", file, "--to", pems, "--json")
    assert written.code == 0, written.err
    for each in json.loads(written.out):
        assert stat.S_IMODE(Path(each["pem"]).stat().st_mode) == 0o600
    said = run_tool("migrate", "convert-config", file, "--tls", pems, "--output", new)
    assert said.code == 0, said.err
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    judged = run_tool(role, "--check", new)
    assert (judged.code, judged.err) == (0, "") or "are plain nevertheless" in judged.err
    assert f"{role}.ssl.keyStore.location: {pems / f'{role}-keyStore.pem'}  # {new}" in judged.out
    doctor = run_tool("doctor", f"--{role}", new, "--json")
    states = {
        each["check"]: each["is_well"]
        for each in json.loads(doctor.out)
        if each["check"].startswith("tls")
    }
    assert states == {"tls-files": True, "tls-expiry": True}


def test_without_the_pem_files_the_file_is_not_converted_and_the_remedy_is_said(site: Site) -> None:
    site.write()
    file = site.directory / "waltz-server.yml"
    said = run_tool("migrate", "convert-config", file)
    assert said.code == 1
    assert f"run waltz migrate convert-tls {file} --to DIRECTORY first" in said.err


def test_nothing_that_is_there_is_replaced(site: Site) -> None:
    site.write()
    file, pems = site.directory / "waltz-server.yml", site.directory / "pem"
    assert run_tool("migrate", "convert-tls", file, "--to", pems).code == 0
    again = run_tool("migrate", "convert-tls", file, "--to", pems)
    assert (again.code, "is there already" in again.err) == (1, True)


def test_with_a_wrong_password_nothing_is_written(site: Site) -> None:
    site.server["server.ssl.trustStore.password"] = "another"
    site.write()
    pems = site.directory / "pem"
    said = run_tool("migrate", "convert-tls", site.directory / "waltz-server.yml", "--to", pems)
    assert (said.code, "is the password right?" in said.err) == (1, True)
    assert not pems.exists()


def test_dropped_keys_stand_in_comments_and_faults_end_with_1(site: Site) -> None:
    site.tools |= {"zookeeper.sessionTimeout": "soon", "nonsense": 1}
    site.write()
    said = run_tool("migrate", "convert-config", site.directory / "waltz-tools.yml")
    assert said.code == 1
    assert "# Dropped: nonsense: neither program has such a key." in said.out
    assert "neither program knows nonsense" in said.err
    assert "the new file would be refused: zookeeper.sessionTimeout" in said.err


def test_a_file_without_stores_or_without_a_role_says_so(tmp_path: Path) -> None:
    file = tmp_path / "other.yml"
    file.write_text("client.port: 1\n")
    assert "name its role with --role" in run_tool("migrate", "convert-config", file).err
    said = run_tool("migrate", "convert-tls", file, "--role", "tools", "--to", tmp_path / "pem")
    assert (said.code, "names no key store below ssl" in said.err) == (1, True)
