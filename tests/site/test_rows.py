"""Each option and each setting of the site has an address."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the dependency group docs is not installed")

from celery_throttle.core.options import TASK_OPTIONS
from celery_throttle.core.settings import Settings

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("options", [f"option-{each}" for each in TASK_OPTIONS]),
        ("settings", [f"setting-throttle_{each.name}" for each in fields(Settings)]),
    ],
)
def test_a_row_has_an_anchor_and_a_link_to_it(site: Path, page: str, names: list[str]) -> None:
    html = (site / f"reference/{page}.html").read_text()
    anchors = set(re.findall(r'<tr [^>]*id="([^"]+)"', html))
    links = set(re.findall(r'href="#([^"]+)"', html))
    assert sorted(set(names) - anchors) == sorted(set(names) - links) == []
