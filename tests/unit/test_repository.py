"""Facts that several files of the repository share: versions of tools, Pythons, rows of the matrix, the version."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import celery_throttle
from tests.matrix import __main__ as matrix
from tests.matrix.__main__ import CELERYS, PYTHONS, USUAL, Outcome, Row, Versions
from tests.support.workers import ROOT

PYPROJECT, TOX = (ROOT / "pyproject.toml").read_text(), (ROOT / "tox.ini").read_text()


def read(path: str) -> Any:
    """Return the content of a file of YAML."""
    return yaml.safe_load((ROOT / path).read_text())


def test_pre_commit_runs_lint_with_its_commands_and_tools() -> None:
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    group = re.search(r"^lint = (\[.*\])$", PYPROJECT, re.MULTILINE)
    assert group
    assert {each for hook in hooks for each in hook["additional_dependencies"]} == set(json.loads(group[1]))
    lint = TOX.partition("[testenv:lint]")[2].partition("\n\n")[0]
    commands = {re.sub(" --check", "", line.strip()) for line in lint.partition("commands =")[2].splitlines() if line}
    assert {hook["entry"].removesuffix(" --force-exclude") for hook in hooks} == commands


def test_ci_runs_the_usual_rows_of_the_matrix() -> None:
    rows = read(".github/workflows/ci.yml")["jobs"]["matrix"]["strategy"]["matrix"]["include"]
    assert tuple(f"{row['python']}-{row['celery']}" for row in rows if not row["untested"]) == USUAL
    untested = {row["python"] for row in rows if row["untested"]}
    assert untested.isdisjoint(PYTHONS), "it is promised: it may not fail"


def test_the_pythons_that_are_promised_are_tested() -> None:
    assert tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)) == PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in PYPROJECT
    pythons, celerys = (",".join(each.partition(".")[2] for each in versions) for versions in (PYTHONS, CELERYS))
    assert f"py3{{{pythons}}}-celery5{{{celerys}}}" in TOX
    assert {each for row in USUAL for each in row.split("-")} == {*PYTHONS, *CELERYS}


@pytest.mark.parametrize(
    ("here", "failed", "code"),
    [("3.12", (), 0), ("3.12", ("t",), 1), ("", (), 2), ("3.11", ("t",), 1), ("3.11", (), 2)],
    ids=["all passed", "one failed", "all skipped", "one failed, one skipped", "one passed, one skipped"],
)
def test_matrix_does_not_count_a_skipped_row_as_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, failed: tuple[str, ...], code: int
) -> None:
    versions = Versions("3.12.1", "5.6.0", "5.6.0", "6.0.0", "server")
    monkeypatch.setattr(Row, "possible", property(lambda row: here and row.python <= here))
    monkeypatch.setattr(matrix, "_outcomes", lambda _: (versions, [Outcome(3, 0, failed)]))
    page = tmp_path / "matrix.md"
    assert matrix.main(["3.11-5.6", "3.12-5.6", "--page", str(page)]) == code
    assert page.exists() == bool(here)


def test_lowest_tested_versions_are_those_of_the_extras() -> None:
    """``tox -e lowest`` tests the promises of pyproject.toml."""
    extras = PYPROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    lines = "".join(re.findall(r"^(?:metrics|opentelemetry|web) = .*", extras, re.MULTILINE))
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)', lines))
    pinned = dict(re.findall(r"^    ([\w-]+)==([\d.]+)$", TOX, re.MULTILINE))
    assert len(bounds) == 6
    assert {name: pinned[name].removesuffix(".0").removesuffix(".0") for name in bounds} == {
        name: each.removesuffix(".0") for name, each in bounds.items()
    }


def test_environments_that_are_named_exist() -> None:
    named = re.findall(r"tox -e ([\w,-]+)", (ROOT / "CONTRIBUTING.md").read_text())
    environments = set(re.findall(r"^\[testenv:([\w-]+)\]", TOX, re.MULTILINE)) | {"test", "smoke"}  # of [testenv]
    assert {each for names in named for each in names.split(",")} <= environments


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
