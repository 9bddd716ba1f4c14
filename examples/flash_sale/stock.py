"""The stock: a number for each item, and a counter of those who asked for it. The first ``STOCK`` of them get one."""

from __future__ import annotations

import os

#: How many there are of each item; here any name is one.
STOCK = int(os.environ.get("SALE_STOCK", "1000"))
#: What the keys of the counters begin with.
PREFIX = "sale"


def asked_for(item: str) -> str:
    """Return the name of the item's counter."""
    return f"asked for {item}"
