"""The stock: a counter of requests for each item. The first ``STOCK`` requests get a unit."""

from __future__ import annotations

import os

#: Units of each item; any name is an item here.
STOCK = int(os.environ.get("SALE_STOCK", "1000"))
#: The beginning of the keys of the counters.
PREFIX = "sale"


def asked_for(item: str) -> str:
    """Return the name of the item's counter."""
    return f"asked for {item}"
