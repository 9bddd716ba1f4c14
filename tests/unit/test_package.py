"""The package after its import: next to nothing is loaded, but its tasks are registered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

import celery_throttle
from celery_throttle import primitives
from tests.support.workers import ROOT

BARE = [
    *("celery_throttle", "celery_throttle.core", "celery_throttle.core.lazy", "celery_throttle.tasks"),
    "celery_throttle.tasks.ours",
]
TASKS = ["celery_throttle.reap", "celery_throttle.tasks.conclude"]
OURS = "sorted(name for name in app.tasks if name.startswith('celery_throttle.'))"


def run(program: str) -> Any:
    """Return the output of a fresh interpreter, as JSON."""
    path = "import json, sys; sys.path.append(sys.argv.pop(1)); exec(sys.argv[1])"
    command = [sys.executable, "-c", path, str(ROOT), program]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


def test_bare_import_loads_few_modules() -> None:
    loaded = run("import celery_throttle; print(json.dumps(sorted(sys.modules)))")
    ours = [name for name in loaded if name.startswith("celery_throttle")]
    assert ours == BARE
    # Of Celery only where it keeps its list of apps, which is not the expensive part.
    theirs = {"celery.app", "celery.backends", "celery.events", "celery.worker", "kombu.messaging", "redis"}
    assert theirs.isdisjoint(loaded)


def test_where_celery_is_loaded_it_loads_nothing_more() -> None:
    program = "import celery; celery.Celery; before = set(sys.modules); import celery_throttle\n"
    loaded = run(program + "print(json.dumps(sorted(set(sys.modules) - before)))")
    assert loaded == BARE


def test_limit_loads_few_building_blocks() -> None:
    loaded = run("from celery_throttle import Limit; print(json.dumps(sorted(sys.modules)))")
    ours = {name.split(".")[2] for name in loaded if name.startswith("celery_throttle.primitives.")}
    assert ours == {"checks", "driving", "lease"}


def test_worker_loads_nothing_of_the_operators_part() -> None:
    loaded = run("import celery_throttle.worker.bootsteps; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in loaded if name.startswith(("celery_throttle.control", "celery_throttle.web"))] == []


def test_each_building_block_is_at_its_documented_place() -> None:
    assert [name for name in primitives.__all__ if getattr(primitives, name).__name__ != name] == []
    assert set(primitives.__all__) <= set(dir(primitives))


@pytest.mark.parametrize(
    "program",
    [
        "import celery_throttle; from celery import Celery; app = Celery()",
        "from celery import Celery; app = Celery(); import celery_throttle",
        "from celery import Celery; app = Celery(); app.finalize(); import celery_throttle",
        "from celery import Celery; app = Celery(imports=['celery_throttle']); app.loader.import_default_modules()",
        "import celery_throttle.primitives; from celery import Celery; app = Celery()",
    ],
)
def test_its_tasks_are_registered_in_every_app(program: str) -> None:
    assert run(f"{program}; app.finalize(); print(json.dumps({OURS}))") == TASKS


def test_every_public_name_is_there() -> None:
    assert all(getattr(celery_throttle, name) for name in celery_throttle.__all__)
    assert set(celery_throttle.__all__) <= set(dir(celery_throttle))
    assert run("from celery_throttle import *; print(json.dumps(Limit('gpu', 4).permits))") == 4


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'celery_throttle' has no attribute 'Throtled'"):
        celery_throttle.Throtled  # noqa: B018


def test_lowest_tested_versions_are_those_of_the_extras() -> None:
    """``tox -e lowest`` tests the promises of pyproject.toml."""
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    lines = "".join(re.findall(r"^(?:metrics|opentelemetry|web) = .*", extras, re.MULTILINE))
    bounds = dict(re.findall(r'"([\w-]+)>=([\d.]+)', lines))
    pinned = dict(re.findall(r"^    ([\w-]+)==([\d.]+)$", (ROOT / "tox.ini").read_text(), re.MULTILINE))
    assert len(bounds) == 6
    assert {name: pinned[name].removesuffix(".0").removesuffix(".0") for name in bounds} == {
        name: each.removesuffix(".0") for name, each in bounds.items()
    }
