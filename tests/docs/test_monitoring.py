"""The dashboard, the alerts and the examples of KEDA: held against the metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from celery_throttle.control.metrics import described
from tests.support.workers import ROOT

yaml: Any = import_module("yaml")  # which has no types

DOCS = ROOT / "docs"
NAMES = {each.name for each in described()}
#: The metrics that the dashboard leaves out, and why.
NOT_SHOWN = {"celery_throttle_store_time_seconds"}  # of use to an alert alone
DASHBOARD: dict[str, Any] = json.loads((DOCS / "monitoring" / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
ALERTS, SCALING, METRICS = (
    (DOCS / page).read_text() for page in ("howto/alerts.md", "howto/autoscaling.md", "reference/metrics.md")
)
#: The beginning of the runbook links.
DOCS_OF_USERS = '{{ or $externalLabels.celery_throttle_docs "docs" }}'
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def metrics_in(text: str) -> set[str]:
    # Of a histogram there are several series.
    return {re.sub(r"_(bucket|sum|count)$", "", each) for each in re.findall(r"celery_throttle_\w+", text)}


def queries(value: object) -> Iterator[str]:
    """Yield the queries of a dashboard to Prometheus."""
    if isinstance(value, dict):
        yield from (str(value[name]) for name in ("expr", "definition") if name in value)
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from queries(each)


def promtool(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL
    return subprocess.run([PROMTOOL, *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


# -- the dashboard -----------------------------------------------------------------------------------------------------


def test_it_shows_each_metric_and_none_that_there_is_not() -> None:
    asked = metrics_in("\n".join(queries(DASHBOARD)))
    assert asked <= NAMES
    assert NAMES - asked == NOT_SHOWN


def test_its_panels_are_where_there_is_room() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({each["id"] for each in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        assert panel["title"]
        assert panel["description"]
        taken |= cells


def test_its_labels_and_variables_are_there() -> None:
    known = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all"} == known
    labels = {label for each in queries(DASHBOARD) for label in re.findall(r"(\w+)=~", each)}
    assert labels == {"group", "limit", "queue"}


@needs_promtool
def test_prometheus_understands_its_queries(tmp_path: Path) -> None:
    found = [re.sub(r"\$\w+", ".*", each) for each in queries(DASHBOARD["panels"])]
    rules = [{"record": f"asked_{number}", "expr": each} for number, each in enumerate(found)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", "rules.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(found)} rules found" in done.stdout


# -- the alerts --------------------------------------------------------------------------------------------------------


def test_alerts_are_of_metrics_that_there_are_and_have_a_runbook() -> None:
    """A link with the external label in front of it, and as a path in the repository without."""
    anchors = {heading.lower() for heading in re.findall(r"^### (\w+)$", ALERTS, flags=re.MULTILINE)}
    assert len(anchors) == len(RULES) == 9
    for rule in RULES:
        assert metrics_in(rule["expr"])
        assert metrics_in(rule["expr"]) <= NAMES
        assert rule["labels"]["severity"] in {"critical", "warning"}
        link = rule["annotations"]["runbook_url"]
        page, _, anchor = link.removeprefix(DOCS_OF_USERS).partition("#")
        assert link.startswith(DOCS_OF_USERS)
        assert (DOCS / page.removeprefix("/")).read_text() == ALERTS
        assert anchor in anchors
        assert anchor == rule["alert"].lower()
    (label,) = re.findall(r"\$externalLabels\.(\w+)", DOCS_OF_USERS)
    example = next(text for text in re.findall(r"```yaml\n(.*?)```", ALERTS, flags=re.DOTALL))
    assert list(yaml.safe_load(example)["global"]["external_labels"]) == [label]


@needs_promtool
def test_when_they_fire(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "docs" / "alerts.test.yml").read_text()
    (tmp_path / "test.yml").write_text(text)
    shutil.copy(DOCS / "monitoring" / "alerts.yml", tmp_path / "ALERTS")
    assert set(re.findall(r"alertname: (\w+)", text)) == {each["alert"] for each in RULES}
    done = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the page ----------------------------------------------------------------------------------------------------------


def test_page_has_an_action_for_each_metric() -> None:
    table = "\n".join(line for line in METRICS.splitlines() if line.startswith("| `celery_throttle_"))
    assert metrics_in(table) == NAMES


def test_examples_of_keda_are_yaml_about_existing_metrics() -> None:
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", SCALING, flags=re.DOTALL)]
    scaled, triggers = examples
    (by_prometheus,), (by_view,) = scaled["spec"]["triggers"], triggers["triggers"]
    assert (by_prometheus["type"], by_view["type"]) == ("prometheus", "metrics-api")
    assert metrics_in(by_prometheus["metadata"]["query"]) == {"celery_throttle_runnable_tasks"}
    assert by_view["metadata"]["valueLocation"] == "runnable"
    assert {*by_prometheus["metadata"].values(), *by_view["metadata"].values()} > {"4"}  # KEDA wants text
