"""The image, carried out into a directory: what is in it, and a cluster that runs in it as a user
without rights on a read-only root."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from supply.pins import pinned_needs, pins_of
from tests.clusters import ROOT, wait_until
from tests.deploy.containers import (
    DOCKERFILE,
    Container,
    Image,
    context,
    stages,
    variables,
)

REQUIREMENTS = ROOT / "deploy" / "docker" / "requirements.txt"
EXTRAS = ("archive", "console")
MIB = 1 << 20
MIB_MAX = 250
"""The image with the Python of these tests; one of pyenv has a library of 22 MiB, that of the base
image has 6."""


def test_the_packages_of_the_image_are_pinned_as_all_others_are() -> None:
    pins = pins_of((ROOT / "constraints.txt").read_text())
    found = pins_of(REQUIREMENTS.read_text())
    for name, pin in found.items():
        assert (pin.version, pin.hashes) == (pins[name].version, pins[name].hashes)
    assert {each.requirement.name for each in pinned_needs(EXTRAS)} <= {
        pin.requirement.name for pin in found.values()
    }


def test_the_build_sees_what_it_installs_and_nothing_else() -> None:
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text()
    found = set(context(ignored))
    assert {path.split("/")[0] for path in found} == {
        "LICENSE",
        "README.md",
        "constraints-build.txt",
        "constraints.txt",
        "deploy",
        "pyproject.toml",
        "src",
    }
    assert {path for path in found if path.startswith("deploy/")} == {
        "deploy/docker/live.py",
        "deploy/docker/requirements.txt",
        "deploy/docker/root.py",
    }


def test_the_last_stage_has_no_shell_to_start_and_a_user_without_rights() -> None:
    _, final = stages(DOCKERFILE.read_text())
    words = {each.word: each for each in final}
    assert words["FROM"].text == "scratch"
    assert "RUN" not in words
    assert words["USER"].text == "10001:10001"
    assert words["STOPSIGNAL"].text == "SIGTERM"
    for word in ("ENTRYPOINT", "CMD"):
        assert words[word].text.startswith("["), "a shell would keep the signal to itself"
    assert 'CMD ["' in words["HEALTHCHECK"].text
    labels = variables(final, "LABEL")
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert set(variables(final, "ARG")) == {"VERSION", "REVISION"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nothing_in_the_image_installs_compiles_or_reads_commands(image: Image) -> None:
    names = {path.name for path in image.root.rglob("*") if not path.is_dir()}
    packages = {path.name for path in image.root.rglob("*") if path.is_dir()}
    assert not names & {"pip", "pip3", "gcc", "cc", "ld", "sh", "bash", "perl", "apt-get", "dpkg"}
    assert not packages & {"pip", "setuptools", "hatchling", "ensurepip", "tests", "tkinter"}
    said = Container(image).run("/opt/waltz/bin/python", "-c", "import pip")
    assert "No module named 'pip'" in said.stderr
    status = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert "libc6" in status, "scanners look there for packages with known weaknesses"
    for path in image.root.rglob("*"):
        assert not path.lstat().st_mode & 0o6000, f"{path} gives rights to who starts it"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_image_is_small(image: Image) -> None:
    def mib(place: str) -> int:
        text = subprocess.run(
            ["du", "-sxm", image.root / place], capture_output=True, text=True, check=True
        )
        return int(text.stdout.split()[0])

    parts = {
        path.name: mib(str(path.relative_to(image.root)))
        for path in image.root.glob("opt/waltz/lib/python*/site-packages/*")
        if path.is_dir()
    }
    largest = sorted(parts.items(), key=lambda item: -item[1])[:8]
    print(f"image: {image.size / MIB:.0f} MiB, environment {mib('opt')}, of which {dict(largest)}")
    assert image.size < MIB_MAX * MIB


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_cluster_in_the_image_writes_its_volume_and_nothing_else_and_ends_by_a_signal(
    container: Container,
) -> None:
    data = container.volumes["/var/lib/waltz"]
    (data.parent / "log").touch()
    with (data.parent / "log").open("w") as log:
        process = container.start(
            *("up", "--directory", "/var/lib/waltz/cluster", "--port", "0"), stderr=log
        )
    state = data / "cluster" / "cluster.json"

    def is_ready() -> bool:
        assert process.popen.poll() is None, (data.parent / "log").read_text()
        return state.exists() and bool(json.loads(state.read_text())["ready"])

    wait_until(is_ready, "waltz up is not ready")
    assert {path.lstat().st_uid for path in data.rglob("*")} == {container.image.user}
    cluster = ("--cluster", str(json.loads(state.read_text())["coordinator"]))
    assert container.run_waltz("append", *cluster, "--partition", "1", "fifty") == "0\n"
    assert "fifty" in container.run_waltz("tail", *cluster, "--from", "earliest", "--no-follow")
    for place in ("/opt/waltz/x", "/etc/x", "/x", "/var/lib/x"):
        said = container.run("/opt/waltz/bin/python", "-c", f"open({place!r}, 'w')")
        assert "Read-only file system" in said.stderr
    assert process.end(signal.SIGTERM) == 0, (data.parent / "log").read_text()
