"""The shop's orders. An order accepts writes only from the newest run of its task, the one with the largest token.

The lock keeps two runs apart as long as it can. A run that was frozen for longer than its lease goes on beside its
successor, and the lock cannot stop it. The ledger refuses its writes, because its token is the smaller one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from examples.payments.database import create as create_database
from examples.payments.database import transaction

NAME = "ledger"
_TABLES = (
    # The state is 'new', 'charging' or 'charged'; the fence is the token of the newest run that has begun.
    """
    CREATE TABLE IF NOT EXISTS orders (
        order_id  INTEGER PRIMARY KEY,
        amount    INTEGER NOT NULL,
        state     TEXT NOT NULL DEFAULT 'new',
        fence     BIGINT NOT NULL DEFAULT 0,
        charge_id TEXT
    )
    """,
    # The outcome is 'charged' or 'refused'; NULL while the run goes on, and for an interrupted run.
    """
    CREATE TABLE IF NOT EXISTS runs (
        order_id INTEGER NOT NULL,
        fence    BIGINT NOT NULL,
        worker   TEXT NOT NULL,
        began    REAL NOT NULL,
        ended    REAL,
        outcome  TEXT,
        PRIMARY KEY (order_id, fence)
    )
    """,
)
_ORDER = "SELECT order_id, amount, state, fence, charge_id FROM orders"


class Superseded(Exception):
    """A newer run has this order, or has charged it, so this run must not write any more."""


@dataclass(frozen=True)
class Order:
    """One order; ``fence`` is the token of the newest run that has begun."""

    order_id: int
    amount: int
    state: str
    fence: int
    charge_id: str | None


@dataclass(frozen=True)
class Run:
    """One run of the task for an order; times are from the monotonic clock."""

    order_id: int
    fence: int
    worker: str
    began: float
    ended: float | None
    outcome: str | None


def create() -> None:
    """Make the tables."""
    create_database(NAME, *_TABLES)


def add(order_id: int, amount: int) -> Order:
    """Add an order if it is new; return the order."""
    with transaction(NAME) as ledger:
        ledger.execute("INSERT INTO orders (order_id, amount) VALUES (?, ?) ON CONFLICT DO NOTHING", (order_id, amount))
        return Order(*ledger.execute(f"{_ORDER} WHERE order_id = ?", (order_id,)).fetchone())


def begin(order_id: int, fence: int, *, worker: str) -> str | None:
    """Begin to charge; return the id of the charge if the order is charged already.

    Raises:
        Superseded: a newer run has begun.
    """
    with transaction(NAME) as ledger:
        begun = ledger.execute(
            "UPDATE orders SET state = 'charging', fence = :fence"
            " WHERE order_id = :order_id AND fence < :fence AND state != 'charged'",
            {"order_id": order_id, "fence": fence},
        ).rowcount
        if begun:
            ledger.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, NULL, NULL)", (order_id, fence, worker, time.monotonic())
            )
            return None
        row = ledger.execute("SELECT state, charge_id FROM orders WHERE order_id = ?", (order_id,)).fetchone()
    if row is None:
        raise LookupError(f"There is no order {order_id}.")
    state, charge_id = row
    if state == "charged":
        return str(charge_id)
    raise Superseded(f"A newer run than {fence} has order {order_id}.")


def settle(order_id: int, fence: int, charge_id: str) -> str:
    """Record the charge; return its id.

    Raises:
        Superseded: a newer run has begun, or has charged the order.
    """
    with transaction(NAME) as ledger:
        settled = ledger.execute(
            "UPDATE orders SET state = 'charged', charge_id = :charge_id"
            " WHERE order_id = :order_id AND fence = :fence AND state = 'charging'",
            {"order_id": order_id, "fence": fence, "charge_id": charge_id},
        ).rowcount
        ledger.execute(
            "UPDATE runs SET ended = ?, outcome = ? WHERE order_id = ? AND fence = ?",
            (time.monotonic(), "charged" if settled else "refused", order_id, fence),
        )
    if not settled:
        raise Superseded(f"A newer run than {fence} has order {order_id}.")
    return charge_id


def find(order_id: int) -> Order | None:
    """Return an order, None if there is none."""
    with transaction(NAME) as ledger:
        row = ledger.execute(f"{_ORDER} WHERE order_id = ?", (order_id,)).fetchone()
    return Order(*row) if row else None


def orders() -> list[Order]:
    """Return all orders."""
    with transaction(NAME) as ledger:
        return [Order(*row) for row in ledger.execute(_ORDER)]


def runs() -> list[Run]:
    """Return all runs, in the order of their starts."""
    with transaction(NAME) as ledger:
        return [Run(*row) for row in ledger.execute("SELECT * FROM runs ORDER BY began")]
