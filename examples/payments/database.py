"""SQLite for the shop and for the payment provider: a file for each, in the same directory."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def create(name: str, *tables: str) -> None:
    """Make a database; once, before other processes use it, because two that switch a new file to WAL at once fail."""
    with closing(_connect(name)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for table in tables:
            connection.execute(table)


@contextmanager
def transaction(name: str) -> Iterator[sqlite3.Connection]:
    """Hold the one write transaction of a database.

    Each transaction has a connection of its own, which is safe with threads and forks. A kill inside rolls it back.
    """
    with closing(_connect(name)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def is_free(name: str) -> bool:
    """Return whether the write transaction is free, or is free within a moment."""
    with closing(_connect(name, patience=0.2)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def _connect(name: str, patience: float = 20.0) -> sqlite3.Connection:
    path = Path(os.environ.get("PAYMENTS_DATA", ".")) / f"{name}.sqlite"
    return sqlite3.connect(path, timeout=patience, isolation_level=None)
