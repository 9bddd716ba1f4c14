"""The package after its import: next to nothing is loaded, but its tasks are registered."""

from __future__ import annotations

import json
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
    assert [name for name in loaded if name.startswith("celery_throttle")] == BARE
    # Of Celery only where it keeps its list of apps, which is not the expensive part.
    theirs = {"celery.app", "celery.backends", "celery.events", "celery.worker", "kombu.messaging", "redis"}
    assert theirs.isdisjoint(loaded)
    program = "import celery; celery.Celery; before = set(sys.modules); import celery_throttle\n"
    assert run(program + "print(json.dumps(sorted(set(sys.modules) - before)))") == BARE, "where Celery is loaded"


@pytest.mark.parametrize(
    ("program", "room", "loaded"),
    [
        ("from celery_throttle import Limit", "primitives", {"checks", "driving", "lease"}),
        ("import celery_throttle.worker.bootsteps", "control", set()),
        ("import celery_throttle.worker.bootsteps", "web", set()),
    ],
)
def test_part_loads_little_of_another_part(program: str, room: str, loaded: set[str]) -> None:
    found = run(f"{program}; print(json.dumps(sorted(sys.modules)))")
    assert {name.split(".")[2] for name in found if name.startswith(f"celery_throttle.{room}.")} == loaded
    assert loaded or f"celery_throttle.{room}" not in found


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
    with pytest.raises(AttributeError, match="module 'celery_throttle' has no attribute 'Throtled'"):
        celery_throttle.Throtled  # noqa: B018
