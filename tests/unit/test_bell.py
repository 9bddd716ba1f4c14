"""The bell that wakes the thread of a process."""

from __future__ import annotations

import os
import resource
import time
from contextlib import ExitStack
from pathlib import Path

from redis import Redis

from celery_throttle.core.sites import Sites
from celery_throttle.permits.bell import Bell

#: One more than `select` can watch.
FILES = 1025


def test_it_sleeps_in_a_process_with_many_open_files() -> None:
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
