"""The files of Prometheus and Grafana, as text.

Owns their formats. The files are named by their paths in this folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.table import ALERTS, DASHBOARDS, RECORDINGS, Alert, Dashboard, Panel

FOLDER: Final = Path(__file__).parent

RUNBOOKS: Final = "docs/operating/"
"""The prefix of the links to pages; `--runbooks` sets another one, such as a site of your own."""

PRINTED: Final = "# Made by `python -m deploy` from deploy/table.py; a test compares them.\n"

PANEL_WIDTH: Final = 12
PANEL_HEIGHT: Final = 8
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def artefacts(runbooks: str = RUNBOOKS) -> Iterator[tuple[str, str]]:
    """Yield the path of each file and its text."""
    yield "prometheus/recording.yml", PRINTED + _yaml(_recording())
    yield "prometheus/alerts.yml", PRINTED + _yaml(_alerts(runbooks))
    for dashboard in DASHBOARDS:
        text = json.dumps(_dashboard(dashboard), indent=2) + "\n"
        yield f"grafana/{dashboard.name}.json", text


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every expression with the name of what uses it."""
    for recording in RECORDINGS:
        yield recording.name, recording.expression
    for alert in ALERTS:
        yield alert.name, alert.expression
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for expression, _ in panel.curves:
                yield f"{dashboard.name}: {panel.title}", expression


def anchor(heading: str) -> str:
    """Return the part of a link after `#` that leads to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _recording() -> dict[str, Any]:
    rules = [{"record": each.name, "expr": each.expression} for each in RECORDINGS]
    return {"groups": [{"name": "waltz", "rules": rules}]}


def _alerts(runbooks: str) -> dict[str, Any]:
    return {"groups": [{"name": "waltz", "rules": [_alert(each, runbooks) for each in ALERTS]}]}


def _alert(alert: Alert, runbooks: str) -> dict[str, Any]:
    link = f"{runbooks}{alert.page}#{anchor(alert.heading)}"
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        "labels": {"severity": str(alert.severity)},
        "annotations": {"summary": alert.summary, "runbook_url": link},
    }


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, width=100)


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    ]
    for label, metric in dashboard.variables:
        variables.append(
            {
                "name": label,
                "type": "query",
                "datasource": DATASOURCE,
                "query": f"label_values({metric}, {label})",
                "refresh": 2,
                "includeAll": True,
                "multi": True,
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return {
        "uid": f"waltz-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["waltz"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {
            "x": PANEL_WIDTH * (number % 2),
            "y": PANEL_HEIGHT * (number // 2),
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for place, (expression, legend) in enumerate(panel.curves)
        ],
    }
