"""The steps of the sale: two web servers, two workers, and one load after the other, each for an item of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from celery_throttle.embedded import bound_to_parent
from celery_throttle.primitives import Counter
from examples.figures import peak
from examples.flash_sale import ledger
from examples.flash_sale.load import Load
from examples.flash_sale.stock import PREFIX, STOCK, asked_for
from examples.flash_sale.summary import SOLD, Sale, Summary, summarize
from examples.processes import ROOT, ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from examples.processes import Processes

SLOTS = 4
LOAD_TIMEOUT = 60.0
# Seconds in which a slow machine can record the orders.
RECORD_TIMEOUT = 40.0


class Course:
    """Runs the sale once."""

    def __init__(self, processes: Processes, client: Redis, say: Callable[[str], None]) -> None:
        self._processes, self._client, self._say = processes, client, say
        self._urls: list[str] = []

    def run(self, loads: Sequence[int], at_once: int, writers: int) -> Summary:
        """Return the figures; raise `ProcessFailed` if a process does not come up or ends by itself."""
        self._start()
        items = [f"item-{number}" for number, _ in enumerate(loads, 1)]
        sales = tuple(self._sell(item, requests, at_once) for item, requests in zip(items, loads, strict=True))
        rows = [row for item in items for row in ledger.orders(item)]
        return Summary(sales, writers, peak((row.began, row.ended) for row in rows))

    def _start(self) -> None:
        self._say(f"starting two web servers, and two workers of {SLOTS} processes each")
        ledger.create()
        for name in ("web one", "web two"):
            self._urls.append(self._processes.web(name, "examples.flash_sale.web:app")[1])
        for name in ("one", "two"):
            self._processes.worker(name, "examples.flash_sale.app", SLOTS)
        self._processes.wait_ready(*self._processes.all)

    def _sell(self, item: str, requests: int, at_once: int) -> Sale:
        self._say(f"{requests} buyers for {STOCK} units, {at_once} at a time")
        began = time.monotonic()
        load = self._load(item, requests, at_once)
        sold = load.statuses.get(SOLD, 0)
        self._say(f"{sold} sold in {load.seconds:.1f} s; waiting until all are recorded")
        self._processes.until(lambda: len(ledger.orders(item)) >= sold, RECORD_TIMEOUT)
        recorded_after = time.monotonic() - began
        asked = Counter(self._client, asked_for(item), prefix=PREFIX).get()
        return summarize(load, at_once, STOCK, asked, ledger.orders(item), recorded_after)

    def _load(self, item: str, requests: int, at_once: int) -> Load:
        command = [sys.executable, "-m", "examples.flash_sale.load", f"/buy/{item}", *self._urls]
        command += ["--requests", str(requests), "--at-once", str(at_once)]
        try:
            # A session of its own, as for the other processes: run() kills the process if this one is interrupted.
            ran = subprocess.run(
                bound_to_parent(command),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=LOAD_TIMEOUT,
                check=True,
                start_new_session=True,
            )
        except subprocess.SubprocessError as error:
            self._processes.check()
            raise ProcessFailed(f"The load generator failed: {error}") from error
        return Load(**json.loads(ran.stdout))
