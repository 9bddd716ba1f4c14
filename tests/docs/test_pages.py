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


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 90
    assert len(README.split()) <= 600


def test_the_readme_begins_with_the_demo() -> None:
    """The first sentence, the demo, the tasks, `status`, the command to try it, two figures, four links."""
    parts = [
        "first come, first served.\n\n<picture>",
        "```python",
        "throttle status\n",
        "tox -q -e demo\n",
        "## Two figures",
        "## More",
    ]
    places = [README.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    figures, more = (README.partition(f"{heading}\n")[2].partition("\n## ")[0] for heading in parts[-2:])
    assert len(re.findall(r"^- .*\*\*.*`tox -e bench -- [\w-]+`", figures, flags=re.MULTILINE)) == 2
    assert "(docs/about/benchmarks.md)" in figures
    assert len(re.findall(r"^- \[.*\]\(docs/", more, flags=re.MULTILINE)) == 4


def test_the_demo_is_short_light_and_dark() -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert pictures == ["docs/images/demo-dark.svg", "docs/images/demo.svg"]
    drawn = [(ROOT / each).read_text() for each in pictures]
    loops = {float(each) for text in drawn for each in re.findall(r"animation: ([\d.]+)s step-end infinite", text)}
    assert len(loops) == 1
    assert 0 < max(loops) <= 12
    assert [text.count("animation: ") - text.count("animation: none") for text in drawn] == [1, 1]
    dark, light = (re.sub(r"--\w+: #\w+", "", text) for text in drawn)
    assert dark == light, "one run in two colours"
    assert drawn[0] != drawn[1]
    assert all(len(text) < 300 * 1024 for text in drawn)


def test_no_picture_of_the_docs_is_left_over() -> None:
    pages = [README, *((DOCS / page).read_text() for page in PAGES)]
    unused = [each.name for each in (DOCS / "images").iterdir() if not any(each.name in page for page in pages)]
    assert set(unused) <= {"page-overview-dark.png"}


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
    assert "\n## Install\n\n    pip install celery-fair-throttle\n\nIt needs" in shown
    assert "package index" not in shown
    assert "\n## More\n\nThe source archive has the docs" in shown
    assert shown.endswith("BSD-3-Clause.\n")


def test_the_badges_name_the_versions_that_the_package_takes() -> None:
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert f"python-{pythons[0]}%20to%20{pythons[-1]}-" in README
    oldest, below = re.findall(r"5\.(\d+)", PROJECT["project"]["dependencies"][0])
    assert f"celery-5.{oldest}%20to%205.{int(below) - 1}-" in README
