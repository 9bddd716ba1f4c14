"""The README and the pages of the site: how long they are, and that each is listed and found."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.core.options import TASK_OPTIONS
from celery_throttle.core.settings import Settings
from tests.support.workers import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found, no-redef]

DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
README = (ROOT / "README.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page: str) -> None:
    assert len((DOCS / page).read_text().splitlines()) <= 250


def test_the_readme_is_short_and_its_pictures_are_there() -> None:
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 750
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert len(pictures) == 2
    assert [each for each in pictures if not (ROOT / each).exists()] == []


def first_cells(page: str) -> list[str]:
    """Return the first cells of the rows of a page's tables, without their marks."""
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / page).read_text(), flags=re.MULTILINE)
    return [row.strip("`") for row in rows]


def test_the_tables_have_each_option_and_each_setting_once() -> None:
    cells = first_cells("reference/options.md")
    options = sorted({*TASK_OPTIONS, *(each.name for each in fields(Limit) if not each.name.startswith("_"))})
    assert sorted(each for each in cells if each != "option") == options
    cells = [each for each in first_cells("reference/settings.md") if each.startswith("throttle_")]
    assert sorted(cells) == sorted(f"throttle_{each.name}" for each in fields(Settings))


def test_llms_txt_lists_each_page() -> None:
    listed = re.findall(r"\]\(([\w/-]+)\.html\)", (DOCS / "llms.txt").read_text())
    assert sorted(f"{each}.md" for each in listed) == [page for page in PAGES if page != "index.md"]


def test_a_package_index_gets_no_link_into_the_repository() -> None:
    shown = README
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    targets = re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', shown)
    assert targets
    assert all("".join(each).startswith("https://") for each in targets)
    assert "\n## More\n\nThe source archive has the docs" in shown
    assert shown.endswith("BSD-3-Clause.\n")


def test_the_badges_name_the_versions_that_the_package_takes() -> None:
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert f"python-{pythons[0]}%20to%20{pythons[-1]}-" in README
    oldest, below = re.findall(r"5\.(\d+)", PROJECT["project"]["dependencies"][0])
    assert f"celery-5.{oldest}%20to%205.{int(below) - 1}-" in README
