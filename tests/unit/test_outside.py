"""Callers outside of tasks: the rows of their calls, and the bell that wakes the thread of their process."""

from __future__ import annotations

import os
import resource
import time
from contextlib import ExitStack
from pathlib import Path

from redis import Redis

from celery_throttle.core.sites import Sites
from celery_throttle.permits.bell import Bell
from celery_throttle.permits.line import Asking, Batch
from celery_throttle.store.exchange import Arrival

#: One more than `select` can watch.
FILES = 1025


def test_bell_sleeps_in_a_process_with_many_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], FILES + 500), before[1]))
        for _ in range(FILES):
            stack.enter_context(Path(os.devnull).open())
        bell = Bell(Redis(), "channel", "queue", Sites({}))
        began = time.monotonic()
        bell.sleep(0.2)
        assert time.monotonic() - began > 0.15
        bell.ring()
        bell.sleep(60)


def test_caller_in_line_sends_the_age_of_its_request() -> None:
    """Its place is the moment at which it asked, however long the store took to refuse it."""
    early, late = (Asking(Arrival(task, "1:gpu", "q"), waits=True) for task in ("early", "late"))
    early.came -= 60
    said = Batch(lining=[late, early]).exchange(0, lease=10.0)
    ages = {each.task: each.age for each in said.arrived}
    assert ages["early"] - ages["late"] > 59
    assert 0 <= ages["late"] < 59


def test_refused_request_gives_back_the_permit_that_its_older_copy_may_get() -> None:
    refused, batch = Batch([Asking(Arrival("t", "1:gpu", "q", nonce="w:1"), waits=False)]), Batch()
    batch.put_back(refused)
    assert [(row.event, row.task, row.nonce) for row, _ in batch.ended] == [("ended", "t", "w:1")]
