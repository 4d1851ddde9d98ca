"""Alerts and dashboard against the catalogue, the runbook, and promtool's own tests.

promtool is in Debian's package `prometheus`; where it is missing, its tests are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.metrics import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "infra" / "prometheus"
RULES = PROMETHEUS / "rules" / "headwater.yml"
RULE_TESTS = PROMETHEUS / "tests" / "headwater_test.yml"
DASHBOARD = ROOT / "infra" / "grafana" / "provisioning" / "dashboards" / "headwater.json"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
EXPOSED = {
    metric.name + suffix: metric for metric in CATALOGUE for suffix in _SUFFIXES[metric.kind]
}
# Labels that Prometheus adds, and those of a query's own aggregation.
ADDED_LABELS = {"le", "instance", "job"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool isn't installed: apt-get install prometheus",
)


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in _rules() if "alert" in rule}
RECORDED = {rule["record"] for rule in _rules() if "record" in rule}


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return panels


EXPRESSIONS = [rule["expr"] for rule in _rules()] + [
    target["expr"] for panel in _panels() for target in panel.get("targets", ())
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_use_what_is_in_the_catalogue(expression: str) -> None:
    names = set(re.findall(r"\bheadwater[\w:]+", expression))
    assert names
    for name in names:
        assert name in RECORDED or name in EXPOSED, name
    for name, selector in re.findall(r"\b(headwater_\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)\s*[=!]~?", selector):
            assert label in EXPOSED[name].labels or label in ADDED_LABELS, (name, label)
    known = {label for n in names if n in EXPOSED for label in EXPOSED[n].labels} | ADDED_LABELS
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        for label in filter(None, (part.strip() for part in grouped.split(","))):
            assert label in known or names & RECORDED, label


def test_the_kinds_of_alert_that_operators_need_are_there() -> None:
    assert set(ALERTS) >= {
        *("FreshnessBudgetBurnsFast", "FreshnessBudgetBurnsSlowly", "FeatureStale"),
        *("StalenessUnknown", "PartitionStalled", "CommitsStopped", "DeadLetterShareHigh"),
        *("EncoderBacklogGrows", "CoverageDropped", "MonitorDown", "CanariesLost"),
    }


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_urgent_it_is_and_where_its_runbook_is(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("page", "ticket")
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == "docs/runbook.md"
    assert anchor == name.lower()
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/runbook.md has no section {name}"
    assert "Look at:" in section[1]
    assert "Do:" in section[1]


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)) == set(ALERTS)


def test_the_runbooks_links_lead_somewhere() -> None:
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK)) <= anchors


def test_every_alert_is_fired_by_a_rule_test() -> None:
    tests = yaml.safe_load(RULE_TESTS.read_text(encoding="utf-8"))["tests"]
    fired = {
        found["alertname"]
        for test in tests
        for found in test["alert_rule_test"]
        if found["exp_alerts"]
    }
    assert fired == set(ALERTS)


@needs_promtool
@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", RULE_TESTS)])
def test_promtool_agrees(arguments: tuple[str, str, Path]) -> None:
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_panels_are_complete() -> None:
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert panel["datasource"]["uid"] == "prometheus"
