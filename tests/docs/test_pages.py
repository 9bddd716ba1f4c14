"""The README and the pages of the site: how long they are, and that each is listed and found."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.workers import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[import-not-found, no-redef]

DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
README = (ROOT / "README.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 750


@pytest.mark.parametrize("page", [page for page in PAGES if page != "internals.md"])
def test_a_page_is_short(page: str) -> None:
    assert len((DOCS / page).read_text().splitlines()) <= 250


def test_llms_txt_lists_each_page() -> None:
    listed = re.findall(r"\]\(([\w/-]+)\.html\)", (DOCS / "llms.txt").read_text())
    assert sorted(f"{each}.md" for each in listed) == [page for page in PAGES if page != "index.md"]


def test_a_package_index_gets_links_that_lead_to_the_site() -> None:
    shown = README
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    targets = re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', shown)
    assert targets
    assert all("".join(each).startswith("https://") for each in targets)


def test_the_badges_name_the_versions_that_the_package_takes() -> None:
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert f"python-{pythons[0]}%20to%20{pythons[-1]}-" in README
    oldest, below = re.findall(r"5\.(\d+)", PROJECT["project"]["dependencies"][0])
    assert f"celery-5.{oldest}%20to%205.{int(below) - 1}-" in README
