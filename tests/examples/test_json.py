"""``tox -e demo -- --json`` prints JSON and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.workers import ROOT

CONFIG = """
[testenv:demo]
skip_install = true
commands = python -c "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit('--fail' in sys.argv)" {posargs}
"""


@pytest.fixture
def tox(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run it where a demo prints its arguments."""
    shutil.copy(ROOT / "toxfile.py", tmp_path)
    (tmp_path / "tox.ini").write_text(CONFIG)
    # The variables of the tox that runs this suite would count here, too.
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOX")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tox", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("given", "status"), [(["--json"], 0), (["--json", "--fail"], 1)])
def test_nothing_else(tox: Callable[..., subprocess.CompletedProcess[str]], given: list[str], status: int) -> None:
    ended = tox("-e", "demo", "--", *given)
    assert json.loads(ended.stdout) == given
    assert (ended.stderr, ended.returncode) == ("", status)


def test_other_commands_and_failures_are_reported_by_tox(tox: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert "congratulations" in tox("-e", "demo", "--", "--plain").stdout
    ended = tox("-e", "demmo", "--", "--json")
    assert "demmo" in ended.stdout + ended.stderr
    assert ended.returncode > 0
