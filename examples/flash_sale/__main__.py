"""``python -m examples.flash_sale [--json] [--quick]``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from redis import Redis

from examples.command import run_command

if TYPE_CHECKING:
    from examples.command import Stage
    from examples.flash_sale.summary import Summary

AT_ONCE = 100
STOCK, LOADS = 1000, (500, 5000)
QUICK_STOCK, QUICK_LOADS = 150, (100, 600)
PROMISE = "no buyer was turned away while there was stock, no unit was sold twice, the ledger has every order."


def perform(stage: Stage, quick: bool) -> Summary:
    """Set the environment and run the steps."""
    stock, loads = (QUICK_STOCK, QUICK_LOADS) if quick else (STOCK, LOADS)
    # For the modules of the shop, here and in its processes.
    os.environ.update(
        SALE_REDIS_URL=stage.url, SALE_LEDGER=str(stage.directory / "ledger.sqlite"), SALE_STOCK=str(stock)
    )
    from examples.flash_sale import ledger  # noqa: PLC0415 - reads the environment set above
    from examples.flash_sale.app import WRITERS  # noqa: PLC0415
    from examples.flash_sale.course import Course  # noqa: PLC0415

    try:
        with Redis.from_url(stage.url, socket_timeout=5) as client:
            return Course(stage.processes, client, stage.say).run(loads, AT_ONCE, WRITERS)
    finally:
        ledger.close()


if __name__ == "__main__":
    sys.exit(run_command("flash_sale", "A thousand units, thousands of buyers, no lock.", perform, PROMISE))
