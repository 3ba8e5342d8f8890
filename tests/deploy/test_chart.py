"""deploy/helm/waltz for three sets of values: what pods may do, who is asked whether they are well,
that our commands and loaders take what is in them, and a cluster of them that is drained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clusters import run_tool
from tests.deploy.chart import (
    CHART,
    FOLDER,
    KUBERNETES,
    NAMES,
    container,
    expanded,
    manifests,
    of_kind,
    workloads,
)
from tests.deploy.containers import Image, directory_for_all, keep
from tests.deploy.rendering import DIGEST, digest, rendered, values_of
from tests.deploy.test_compose import parse
from tests.deploy.tools import helm, python_tools, run
from tests.network.links import refusal, run_alone
from waltz.limits import SHUTDOWN_SECONDS_MAX

PLAY_SECONDS_MAX = 290
MANIFESTS = {name: manifests(name) for name in NAMES}
WORKLOADS = [(name, each) for name, found in MANIFESTS.items() for each in workloads(found)]
SETS = [(name, each) for name, each in WORKLOADS if each["kind"] == "StatefulSet"]


def ids(case: object) -> str | None:
    return case["metadata"]["name"] if isinstance(case, dict) else None


def test_what_is_kept_is_of_this_chart() -> None:
    assert len(NAMES) == 3
    assert DIGEST.read_text() == digest(), "run `make chart`"


@pytest.mark.parametrize(("name", "workload"), WORKLOADS, ids=ids)
def test_a_pod_has_no_rights_a_read_only_root_and_nothing_before_it_that_touches_data(
    name: str, workload: dict[str, Any]
) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod.keys() & {"initContainers", "hostNetwork", "hostPID", "hostIPC"}
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPath" in each for each in pod.get("volumes", ()))


@pytest.mark.parametrize(("name", "workload"), SETS, ids=ids)
def test_only_a_process_that_does_not_turn_is_restarted(
    name: str, workload: dict[str, Any]
) -> None:
    only = container(workload)
    asked = {which: only[which]["httpGet"]["path"] for which in only if which.endswith("Probe")}
    assert asked == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/health"}
    assert "preStop" not in str(only), "the node itself drains when it is told to stop"
    grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > SHUTDOWN_SECONDS_MAX


@pytest.mark.parametrize(("name", "workload"), SETS, ids=ids)
def test_one_pod_at_a_time_is_taken_away(name: str, workload: dict[str, Any]) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    of_this_kind = MANIFESTS[name]
    budget = of_kind(of_this_kind, "PodDisruptionBudget", workload["metadata"]["name"])["spec"]
    service = of_kind(of_this_kind, "Service", workload["spec"]["serviceName"])["spec"]
    assert budget["maxUnavailable"] == 1
    selectors = [
        budget["selector"]["matchLabels"],
        workload["spec"]["selector"]["matchLabels"],
        service["selector"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert selector["app.kubernetes.io/component"] in workload["metadata"]["name"]
    assert service["publishNotReadyAddresses"] is True
    apart = workload["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert apart, "two replicas on one machine go away together"


@pytest.mark.parametrize(("name", "workload"), WORKLOADS, ids=ids)
def test_our_commands_take_the_arguments(
    name: str, workload: dict[str, Any], tmp_path: Path
) -> None:
    arguments = [expanded(each, {"POD_NAME": "pod-0"}) for each in container(workload)["args"]]
    data = of_kind(MANIFESTS[name], "ConfigMap")["data"]
    for file, text in data.items():
        (tmp_path / file).write_text(text)
    keys = tmp_path / "keys"
    keys.mkdir()
    for file in ("tls.crt", "tls.key", "ca.crt"):
        (keys / file).touch()
    here = [
        each.replace("/etc/waltz-tls", str(keys)).replace("/etc/waltz/", f"{tmp_path}/")
        for each in arguments
    ]
    assert parse(here).command.name in ("create", "console", "server", "storage")


@pytest.mark.parametrize("kind", ["storage", "server"])
@pytest.mark.parametrize("name", NAMES)
def test_our_loaders_take_the_configuration(name: str, kind: str, tmp_path: Path) -> None:
    text = of_kind(MANIFESTS[name], "ConfigMap")["data"][f"{kind}.yml"]
    secrets = tmp_path / "tls"
    secrets.mkdir()
    authority = tmp_path / "authority"
    for command in (["init"], ["issue", "it", "--for", kind, "--host", "it"]):
        assert run_tool("certs", *command, "--directory", authority).code == 0
    whole = (authority / "it.pem").read_text()
    for file in ("tls.crt", "tls.key"):
        (secrets / file).write_text(whole)
    shutil.copyfile(authority / "ca.pem", secrets / "ca.crt")
    file_name = tmp_path / f"{kind}.yml"
    file_name.write_text(text.replace("/etc/waltz-tls", str(secrets)))
    own = ("--directory", tmp_path) if kind == "storage" else ()
    said = run_tool(kind, "--check", *own, file_name)
    assert said.code == 0, said.err
    assert "not known" not in said.err


def test_ports_are_open_to_those_who_are_named_where_that_is_wanted() -> None:
    assert not any(each["kind"] == "NetworkPolicy" for each in MANIFESTS["plain"])
    found = MANIFESTS["production"]
    storage = of_kind(found, "NetworkPolicy", "waltz-storage")["spec"]["ingress"]
    server = of_kind(found, "NetworkPolicy", "waltz-server")["spec"]["ingress"]
    ours = {"app.kubernetes.io/name": "waltz", "app.kubernetes.io/instance": "waltz"}
    assert storage[0]["from"] == [{"podSelector": {"matchLabels": ours}}]
    clients = yaml.safe_load(values_of("production").read_text())["networkPolicy"]["clients"]
    assert server[0]["from"] == [{"podSelector": {"matchLabels": ours}}, *clients]


def test_a_certificate_has_the_name_of_each_pod_that_shows_it() -> None:
    found = MANIFESTS["production"]
    for kind, count in (("storage", 5), ("server", 4)):
        spec = of_kind(found, "Certificate", f"waltz-{kind}")["spec"]
        domain = f"waltz-{kind}.log.svc.cluster.local"
        assert spec["dnsNames"] == [f"waltz-{kind}-{number}.{domain}" for number in range(count)]
        assert {"server auth", "client auth"} <= set(spec["usages"])


def test_the_console_is_reached_from_its_own_pod_only() -> None:
    console = of_kind(MANIFESTS["plain"], "Deployment")
    assert "--http=127.0.0.1:7180" in container(console)["args"]
    assert not any("console" in each["metadata"]["name"] for each in MANIFESTS["plain"]
                   if each["kind"] == "Service")  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(
    2400
)  # once, Helm is built: minutes, and several times as long beside other work
def test_helm_finds_no_fault_and_makes_what_is_kept() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm(
        "lint", CHART, "--strict", "--values", values_of("plain")
    )
    for name in NAMES:
        assert rendered(name) == (FOLDER / f"{name}.golden.yaml").read_text()
    for wrong in ("storage.replicas=0", "zookeeper.connectString=nowhere", "storage.replica=3"):
        with pytest.raises(AssertionError, match="schema"):
            helm("template", CHART, "--values", values_of("plain"), "--set", wrong)


@pytest.mark.long
def test_kubernetes_knows_every_field() -> None:
    """By the schemas of Kubernetes itself; those of cert-manager come with no package."""
    program = python_tools() / "kubernetes-validate"
    for name in NAMES:
        path = FOLDER / f"{name}.golden.yaml"
        run(program, "--strict", "--no-warn", "-k", KUBERNETES, path)


@pytest.mark.long
def test_a_field_that_kubernetes_does_not_know_is_found(tmp_path: Path) -> None:
    text = (FOLDER / "plain.golden.yaml").read_text()
    assert "maxUnavailable" in text
    (tmp_path / "wrong.yaml").write_text(text.replace("maxUnavailable", "maxAway"))
    program = python_tools() / "kubernetes-validate"
    with pytest.raises(AssertionError, match="maxAway"):
        run(program, "--strict", "--no-warn", "-k", KUBERNETES, tmp_path / "wrong.yaml")


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", ["plain", "secrets"])
def test_partitions_take_appends_while_a_pod_is_drained(image: Image, name: str) -> None:
    """With certificates and without."""
    if (reason := refusal()) is not None:
        pytest.skip(reason)
    directory = directory_for_all()
    try:
        keep(image, directory / "image.json")
        done = run_alone(
            *("-m", "tests.deploy.chart", str(directory / "image.json"), str(directory), name),
            capture_output=True,
            text=True,
            timeout=PLAY_SECONDS_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)
    finally:
        shutil.rmtree(directory)
