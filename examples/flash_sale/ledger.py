"""The database that the throttle protects: one row for each order."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import dataclass
from functools import cache

_TABLE = """
CREATE TABLE orders (
    order_id TEXT PRIMARY KEY,
    item     TEXT NOT NULL,
    unit     INTEGER NOT NULL,
    began    REAL NOT NULL,
    ended    REAL NOT NULL,
    UNIQUE (item, unit)
)
"""


@dataclass(frozen=True)
class Order:
    """One row; times are from the monotonic clock, which all processes of a machine share."""

    order_id: str
    unit: int
    began: float
    ended: float


def create() -> None:
    """Make the table; once, before other processes write, because two that switch a new file to WAL at once fail."""
    _connection().execute("PRAGMA journal_mode = WAL")
    _connection().execute(_TABLE)


def write(order_id: str, item: str, unit: int, began: float) -> None:
    """Record an order, unless it is recorded already. The table refuses a unit that another order has."""
    with _connection() as connection:
        connection.execute(
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?) ON CONFLICT (order_id) DO NOTHING",
            (order_id, item, unit, began, time.monotonic()),
        )


def orders(item: str) -> list[Order]:
    """Return all orders of an item."""
    rows = _connection().execute("SELECT order_id, unit, began, ended FROM orders WHERE item = ?", (item,))
    return [Order(*row) for row in rows]


def close() -> None:
    """Close this process's connection."""
    _connection().close()
    _connection.cache_clear()


@cache
def _connection() -> sqlite3.Connection:
    # Made on first use, in the child, because a connection does not survive a fork.
    return sqlite3.connect(os.environ.get("SALE_LEDGER", "sale.sqlite"), timeout=20)
