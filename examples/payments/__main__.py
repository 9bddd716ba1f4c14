"""``python -m examples.payments [--json] [--quick]``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from examples.command import run_command

if TYPE_CHECKING:
    from examples.command import Stage
    from examples.payments.summary import Summary

ORDERS, QUICK_ORDERS = 12, 9
PROMISE = "every order was charged once, without a needless run, and every request got the outcome of that charge."


def perform(stage: Stage, quick: bool) -> Summary:
    """Set the environment and run the steps."""
    # For the modules of the shop, here and in its processes.
    os.environ.update(PAYMENTS_REDIS_URL=stage.url, PAYMENTS_DATA=str(stage.directory))
    from examples.payments.app import app  # noqa: PLC0415 - reads the environment set above
    from examples.payments.course import Course  # noqa: PLC0415

    amounts = {order_id: 1000 + order_id for order_id in range(1, (QUICK_ORDERS if quick else ORDERS) + 1)}
    try:
        return Course(stage.processes, amounts, stage.say).run()
    finally:
        app.close()


if __name__ == "__main__":
    sys.exit(run_command("payments", "A shop that charges every order once.", perform, PROMISE))
