"""deploy/compose: what the file may do on the machine, that our commands take its command lines and
our loaders its files, and a cluster of its very lines."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import click
import pytest
import yaml

from deploy.artefacts import FOLDER as ARTEFACTS
from tests.clusters import run_tool
from tests.deploy.compose import FOLDER, OURS, mounts, planned, scrape_targets, services
from tests.deploy.containers import Image, directory_for_all, keep
from tests.deploy.tools import python_tools, run
from tests.network.links import refusal, run_alone
from tests.promtool import promtool
from waltz.cli.commands import waltz

SERVICES = services()
TEXT = (FOLDER / "compose.yaml").read_text()
PLAY_SECONDS_MAX = 280


def parse(arguments: list[str]) -> click.Context:
    """Have the `waltz` command parse arguments as it does before it runs. Raises UsageError."""
    context = waltz.make_context("waltz", list(arguments), resilient_parsing=False)
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_and_a_read_only_root(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "network_mode", "pid"}


@pytest.mark.parametrize("name", SERVICES)
def test_only_this_machine_reaches_a_port(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_volumes_have_names_and_files_are_there_and_read_only() -> None:
    volumes = yaml.safe_load(TEXT)["volumes"]
    used = [source for each in SERVICES.values() for source, _, fixed in mounts(each) if not fixed]
    assert sorted(used) == sorted(volumes)
    for service in SERVICES.values():
        for source, _, fixed in mounts(service):
            assert not fixed or (FOLDER / source).exists(), source


def test_every_container_that_goes_on_is_asked_whether_it_is_well() -> None:
    for name, service in SERVICES.items():
        asked = service.get("healthcheck", {})
        if name == "cluster":
            assert asked == {"disable": True}, "it ends"
        elif OURS in service["image"]:
            assert not asked, "the image has a question of its own"
        else:
            assert asked["test"][0] == "CMD"


def test_no_secret_stands_in_the_file() -> None:
    named = re.sub(r"grafana-password|PASSWORD__FILE", "", TEXT)
    assert not re.search("password|token|secret:", named, re.IGNORECASE)
    assert SERVICES["grafana"]["secrets"] == ["grafana-password"]


@pytest.mark.parametrize("name", [each.name for each in planned()])
def test_our_commands_take_the_command_line(name: str) -> None:
    (found,) = (each for each in planned() if each.name == name)
    arguments = [str(found.files.get(each, each)) for each in found.arguments]
    assert parse(arguments).command.name == found.arguments[0 if name != "cluster" else 1]


def test_a_command_line_with_a_word_too_many_is_not_taken() -> None:
    (found,) = (each for each in planned() if each.name == "cluster")
    with pytest.raises(click.UsageError, match="No such option"):
        parse([*found.arguments, "--if-present"])


@pytest.mark.parametrize("kind", ["storage", "server"])
def test_our_loaders_take_the_files(kind: str, tmp_path: Path) -> None:
    own = ("--directory", str(tmp_path)) if kind == "storage" else ()
    said = run_tool(kind, "--check", *own, str(FOLDER / f"{kind}.yml"))
    assert (said.code, said.err) == (0, "")


def test_prometheus_scrapes_each_process_at_its_http_port_and_reads_our_rules(
    tmp_path: Path,
) -> None:
    nodes = [name for name in SERVICES if name.startswith(("storage", "server"))]
    assert sorted(scrape_targets()) == sorted((name, 7280) for name in nodes)
    file = FOLDER / "prometheus.yml"
    rules = "/etc/prometheus/rules"
    assert ("../prometheus", rules, True) in mounts(SERVICES["prometheus"])
    here = tmp_path / file.name
    here.write_text(file.read_text().replace(rules, str(ARTEFACTS / "prometheus")))
    assert "2 rule files found" in promtool("check", "config", here)


def test_grafana_finds_our_dashboards_where_they_are_mounted() -> None:
    providers = yaml.safe_load((FOLDER / "grafana" / "dashboards.yml").read_text())
    (provider,) = providers["providers"]
    mounted = {target: source for source, target, _ in mounts(SERVICES["grafana"])}
    folder = (FOLDER / mounted[provider["options"]["path"]]).resolve()
    assert folder == ARTEFACTS / "grafana"
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasource.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


@pytest.mark.long
def test_others_take_the_file_and_the_dockerfile_as_well() -> None:
    """The Compose specification as its parser in Rust has it, and hadolint's rules."""
    filled = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", TEXT)
    judge = (
        "import sys; from compose_spec import PyCompose;"
        "print(*PyCompose.from_json(sys.stdin.read()).service_names())"
    )
    scripts = python_tools()
    read = run(scripts / "python", "-c", judge, given=json.dumps(yaml.safe_load(filled)))
    assert set(read.split()) == set(SERVICES)
    dockerfile = FOLDER.parent / "docker" / "Dockerfile"
    # One RUN per step: the layers of the stage that builds do not get into the image.
    assert run(scripts / "hadolint", "--ignore", "DL3059", dockerfile) == ""


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_the_files_make_a_cluster_that_takes_an_append_ends_by_signals_and_keeps_it(
    image: Image,
) -> None:
    if (reason := refusal()) is not None:
        pytest.skip(reason)
    directory = directory_for_all()
    try:
        keep(image, directory / "image.json")
        done = run_alone(
            *("-m", "tests.deploy.compose", str(directory / "image.json"), str(directory)),
            capture_output=True,
            text=True,
            timeout=PLAY_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)
    finally:
        shutil.rmtree(directory)
