"""The files of `deploy`: as made from the table, with links that lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from deploy.artefacts import FOLDER, RUNBOOKS, anchor, artefacts, expressions
from deploy.table import ALERTS, DASHBOARDS, RECORDINGS
from waltz.cli.metrics_document import SECTIONS

OPERATING = Path(__file__).parents[2] / "docs" / "operating"

WORDS = re.compile(r"[a-z_]+:[a-z_:0-9]+|waltz_\w+")

KNOWN = {sample for section in SECTIONS.values() for each in section for sample in each.samples}


@pytest.mark.parametrize(("name", "text"), [*artefacts()])
def test_a_file_is_as_made(name: str, text: str) -> None:
    assert (FOLDER / name).read_text() == text, "run `make docs`"


def test_nothing_else_lies_there() -> None:
    made = {name for name, _ in artefacts()}
    for folder in ("grafana", "prometheus"):
        assert {f"{folder}/{path.name}" for path in (FOLDER / folder).iterdir()} <= made


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_leads_to_a_heading(alert: object) -> None:
    assert isinstance(alert, type(ALERTS[0]))
    text = (OPERATING / alert.page).read_text()
    assert alert.heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def test_links_begin_with_what_is_wanted() -> None:
    assert anchor("Is it all right?") == "is-it-all-right"
    made = dict(artefacts("https://docs.example/"))
    (first, *_) = yaml.safe_load(made["prometheus/alerts.yml"])["groups"][0]["rules"]
    assert first["annotations"]["runbook_url"].startswith("https://docs.example/server.md#")
    here = yaml.safe_load((FOLDER / "prometheus/alerts.yml").read_text())
    assert RUNBOOKS in here["groups"][0]["rules"][0]["annotations"]["runbook_url"]


@pytest.mark.parametrize(("user", "expression"), [*expressions()])
def test_an_expression_uses_metrics_that_there_are(user: str, expression: str) -> None:
    recorded = {each.name for each in RECORDINGS}
    names = set(WORDS.findall(expression)) - {"waltz"}
    assert names <= KNOWN | recorded, user


def test_names_of_recorded_series_alerts_and_panels_are_unique() -> None:
    for names in (
        [each.name for each in RECORDINGS],
        [each.name for each in ALERTS],
        *([panel.title for panel in each.panels] for each in DASHBOARDS),
    ):
        assert len(set(names)) == len(names)


def test_dashboards_are_what_grafana_reads() -> None:
    for dashboard in DASHBOARDS:
        found = json.loads((FOLDER / "grafana" / f"{dashboard.name}.json").read_text())
        assert found["schemaVersion"] >= 36
        places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in found["panels"]]
        assert len(set(places)) == len(places)
        assert all(target["expr"] for each in found["panels"] for target in each["targets"])
        names = {each["name"] for each in found["templating"]["list"]}
        used = set(re.findall(r'=~"\$(\w+)"', json.dumps(found).replace('\\"', '"')))
        assert used <= names
