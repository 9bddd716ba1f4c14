"""The flash sale: the whole stock is sold, no order waits for a lock, the ledger has every order."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.examples.commands import Command


def test_all_stock_is_sold_once_before_any_refusal(tmp_path: Path) -> None:
    with Command("flash_sale", tmp_path) as command:
        summary = command.summary()
        command.check_nothing_left()
    assert summary["ok"] is True
    below, above = summary["sales"]
    stock = below["stock"]
    assert below["requests"] < stock < above["requests"]
    assert (below["sold"], below["refused_no_stock"]) == (below["requests"], 0)
    assert (above["sold"], above["refused_no_stock"]) == (stock, above["requests"] - stock)
    for sale in (below, above):
        assert sale["at_once"] == 100
        assert sale["sold"] == sale["stock_taken"] == sale["ledger_rows"]
        assert sale["turned_away"] == sale["oversold"] == sale["orders_astray"] == 0
        assert 0 < sale["p50_ms"] <= sale["p99_ms"]
        assert sale["requests_per_second"] > 0
    assert 1 <= summary["most_writers_at_once"] <= summary["writers_limit"]


def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    """While the buyers buy."""
    with Command("flash_sale", tmp_path) as command:
        assert command.interrupt(signal.SIGINT, when="600 buyers") == 130, command.progress()
        command.check_nothing_left()
