"""Calls to a store that refuses them or was away: when they are made again, and the time that was lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.worker.held_back.saving import Saving
from celery_throttle.worker.store_side import calls as module
from celery_throttle.worker.store_side.calls import Calls
from tests.support.timers import Timers

NOTHING: Any = None


class Loop(Timers):
    """The loop, too; nothing turns here."""

    def every_turn(self, tick: Any) -> None: ...


def test_calls_paused_after_a_hurry_wait_for_the_later_pause() -> None:
    """Else each hurry of a worker that stops adds a try in each second."""
    timers = Loop()
    gate: Any = SimpleNamespace(put_off=lambda runs, again: timers.later(1.0, again))
    link: Any = SimpleNamespace(hurry=lambda: None, up=False)
    calls = Calls("", NOTHING, "w", {}, gate, lambda calls: (link, NOTHING), NOTHING)
    calls._pause(ValueError("full"), [])
    calls.hurry()
    paused = [calls.paused]
    calls._pause(ValueError("full"), [])
    for _ in range(2):
        timers.ring_one()
        paused.append(calls.paused)
    assert paused == [False, True, False]


def test_saving_paused_after_a_hurry_waits_for_the_later_pause() -> None:
    timers: Any = Loop()
    link: Any = SimpleNamespace(hurry=lambda: None)
    durability: Any = SimpleNamespace(kind="replica")
    held: Any = SimpleNamespace(of=lambda *_, **__: [], has=lambda *_: True)
    saving = Saving("", NOTHING, durability, NOTHING, held, lambda saving: link, timers, timers)
    saving._refused(ValueError("full"))
    saving.hurry()
    settled = [saving.settled]
    saving._refused(ValueError("full"))
    for _ in range(2):
        timers.ring_one()
        settled.append(saving.settled)
    assert settled == [False, True, False]


def test_declaration_reports_for_how_long_the_store_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store then prolongs the leases that could not be renewed."""
    now, reported = 100.0, list[float]()
    monkeypatch.setattr(module, "monotonic", lambda: now)

    def declarations(*_: object, away: float, worker: str) -> list[Any]:
        assert worker == "w"
        reported.append(away)
        return [NOTHING]

    store: Any = SimpleNamespace(declarations=declarations)
    gate: Any = SimpleNamespace(store_lost=lambda *_: None)
    link: Any = SimpleNamespace(send=lambda *_: None)
    listener: Any = SimpleNamespace(published=lambda **_: None, start_over=lambda _: None)
    calls = Calls("", store, "w", {}, gate, lambda calls: (link, listener), NOTHING)
    calls.up()
    calls.broken(ConnectionError())
    now = 130.0
    calls.up()
    assert reported == [0.0, 30.0 + TIMEOUT]  # it was silent for so long before the connection broke
