"""Facts that several files of the repository share: versions of tools, Pythons, rows of the matrix, the version."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import celery_throttle
from tests.matrix.__main__ import CELERYS, PYTHONS, USUAL
from tests.support.workers import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()


def read(path: str) -> Any:
    """Return the content of a file of YAML."""
    return yaml.safe_load((ROOT / path).read_text())


def group(name: str) -> set[str]:
    """Return the requirements of a dependency group."""
    found = re.search(rf"^{name} = (\[.*\])$", PYPROJECT, re.MULTILINE)
    assert found, name
    return set(json.loads(found[1]))


def test_pre_commit_has_the_tools_of_lint() -> None:
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert {each for hook in hooks for each in hook["additional_dependencies"]} == group("lint")


def test_pre_commit_runs_the_commands_of_lint() -> None:
    lint = (ROOT / "tox.ini").read_text().partition("[testenv:lint]")[2].partition("\n\n")[0]
    commands = {re.sub(" --check", "", line.strip()) for line in lint.partition("commands =")[2].splitlines() if line}
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert {hook["entry"].removesuffix(" --force-exclude") for hook in hooks} == commands


def test_ci_runs_the_usual_rows_of_the_matrix() -> None:
    rows = read(".github/workflows/ci.yml")["jobs"]["matrix"]["strategy"]["matrix"]["include"]
    assert tuple(f"{row['python']}-{row['celery']}" for row in rows if not row["untested"]) == USUAL
    untested = {row["python"] for row in rows if row["untested"]}
    assert untested.isdisjoint(PYTHONS), "it is promised: it may not fail"


def test_the_pythons_that_are_promised_are_tested() -> None:
    promised = tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT))
    assert promised == PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in PYPROJECT
    tox = (ROOT / "tox.ini").read_text()
    pythons, celerys = (",".join(each.partition(".")[2] for each in versions) for versions in (PYTHONS, CELERYS))
    assert f"py3{{{pythons}}}-celery5{{{celerys}}}" in tox
    assert {each for row in USUAL for each in row.split("-")} == {*PYTHONS, *CELERYS}


@pytest.mark.parametrize("path", ["CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"])
def test_links_lead_to_files_and_headings(path: str) -> None:
    page = ROOT / path
    for target, _, anchor in re.findall(r"\]\((?!https:)([^)#]*)(#([^)]*))?\)", page.read_text()):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings}


def test_environments_that_are_named_exist() -> None:
    tox = (ROOT / "tox.ini").read_text()
    named = re.findall(r"tox -e ([\w,-]+)", (ROOT / "CONTRIBUTING.md").read_text())
    assert {each for names in named for each in names.split(",")} - {"test", "smoke"} <= set(  # of [testenv] itself
        re.findall(r"^\[testenv:([\w-]+)\]", tox, re.MULTILINE)
    )


def test_each_folder_of_tests_is_described() -> None:
    page = (ROOT / "tests" / "README.md").read_text()
    folders = {each.parent.name for each in (ROOT / "tests").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_the_version_is_that_of_the_distribution() -> None:
    assert celery_throttle.__version__ == importlib.metadata.version("celery-fair-throttle")
    assert "__version__" in dir(celery_throttle)


def test_a_source_tree_that_is_not_installed_has_no_version() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import importlib.metadata as metadata\n"
        "def version(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version; import celery_throttle.version; print(celery_throttle.version.__version__)"
    )
    command = [sys.executable, "-c", program, str(ROOT)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "0+unknown\n"
