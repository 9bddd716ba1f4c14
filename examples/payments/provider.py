"""A simulated payment provider: a slow one, so that a caller may be gone before the answer.

It has two features that a provider should have. The order's id is the idempotency key, so a repeated call gets the
answer of the first. A call is refused if a larger token was seen for the order.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass

from examples.payments.database import create as create_database
from examples.payments.database import transaction

NAME = "provider"
_TABLES = (
    # "repeated" counts the later calls that were answered with this charge.
    """
    CREATE TABLE IF NOT EXISTS charges (
        order_id  INTEGER NOT NULL UNIQUE,
        charge_id TEXT NOT NULL,
        amount    INTEGER NOT NULL,
        fence     BIGINT NOT NULL,
        repeated  INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE TABLE IF NOT EXISTS seen (order_id INTEGER PRIMARY KEY, fence BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS refused (order_id INTEGER NOT NULL, fence BIGINT NOT NULL)",
)
# Seconds for each of two steps: the customer's bank before the money moves, the answer after it.
_WAY = (0.12, 0.25)


class Refused(Exception):
    """A newer run of the same order has called before."""


@dataclass(frozen=True)
class Charge:
    """Money that has moved, and the token of the run that moved it."""

    order_id: int
    charge_id: str
    amount: int
    fence: int
    repeated: int


def create() -> None:
    """Make the tables."""
    create_database(NAME, *_TABLES)


def charge(order_id: int, amount: int, fence: int) -> str:
    """Move the money of an order, once; return the id of its charge.

    Raises:
        Refused: a newer run of the same order has called before.
    """
    _check_in(order_id, fence)
    time.sleep(random.uniform(*_WAY))
    charge_id = _move(order_id, amount, fence)
    time.sleep(random.uniform(*_WAY))
    return charge_id


def charges() -> list[Charge]:
    """Return all charges."""
    with transaction(NAME) as books:
        return [Charge(*row) for row in books.execute("SELECT * FROM charges")]


def refusals() -> set[tuple[int, int]]:
    """Return the order and the token of each call that came too late."""
    with transaction(NAME) as books:
        return set(books.execute("SELECT order_id, fence FROM refused").fetchall())


def _check_in(order_id: int, fence: int) -> None:
    with transaction(NAME) as books:
        books.execute(
            "INSERT INTO seen VALUES (?, ?) ON CONFLICT (order_id) DO UPDATE SET fence = max(fence, excluded.fence)",
            (order_id, fence),
        )


def _move(order_id: int, amount: int, fence: int) -> str:
    with transaction(NAME) as books:
        (newest,) = books.execute("SELECT fence FROM seen WHERE order_id = ?", (order_id,)).fetchone()
        if fence < newest:
            books.execute("INSERT INTO refused VALUES (?, ?)", (order_id, fence))
        else:
            books.execute(
                "INSERT INTO charges (order_id, charge_id, amount, fence) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (order_id) DO UPDATE SET repeated = repeated + 1",
                (order_id, uuid.uuid4().hex, amount, fence),
            )
        row = books.execute("SELECT charge_id FROM charges WHERE order_id = ?", (order_id,)).fetchone()
    # Raised here, because an error inside the transaction would roll the refusal back.
    if fence < newest:
        raise Refused(f"A newer run than {fence} has called for order {order_id}.")
    return str(row[0])
