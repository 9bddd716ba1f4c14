"""The payments example: every order is charged once, through clicks, repeats, kills and freezes."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.examples.commands import Command


def test_every_order_is_charged_once(tmp_path: Path) -> None:
    with Command("payments", tmp_path, progress=False) as command:
        summary = command.summary()
        assert command.progress() == ""  # JSON, and nothing else
        command.check_nothing_left()
    orders = summary["orders"]
    assert summary["ok"] is True
    assert summary["charges"] == orders == 9
    assert summary["clicks"] == summary["webhooks"] == 3 * orders
    assert summary["amount_charged"] == summary["amount_due"]
    for wrong in ("turned_away", "orders_with_two_task_ids", "needless_runs", "orders_charged_twice"):
        assert summary[wrong] == 0, wrong
    assert summary["orders_not_charged"] == summary["task_ids_with_another_outcome"] == 0
    killed = summary["killed_before_the_money_moved"] + summary["killed_after_the_money_moved"]
    frozen = summary["frozen_before_the_money_moved"] + summary["frozen_after_the_money_moved"]
    assert killed > 0
    assert frozen > 0
    assert summary["runs"] == orders + killed + frozen
    assert summary["late_writes_refused"] == frozen


def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    """By SIGTERM, while one worker is killed and another one is frozen."""
    with Command("payments", tmp_path) as command:
        assert command.interrupt(signal.SIGTERM, when="freezes") == 143, command.progress()
        command.check_nothing_left()
