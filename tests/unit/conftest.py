"""A process without apps and tasks of other tests."""

from __future__ import annotations

from weakref import WeakSet

import pytest


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no shared tasks of other tests come to the apps of this one, and none of these to theirs."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._apps", WeakSet())
