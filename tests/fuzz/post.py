"""Send changed messages to a real worker, with innocent calls among them, and look what becomes of those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any

from tests.fuzz.odd import TASKS, odd_message
from tests.support.journal import Journal, peak
from tests.support.odd import LOG_FORMAT, lines_of_ours, put, raw
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

__all__ = ["Post", "summary"]

ODD = "tests.support.apps.odd"
#: The odd messages that are sent at once, and the innocent calls among them.
AT_ONCE, INNOCENT = 20, 16
#: The most lines that we write to a log for a message, above INFO.
MOST_LINES = 20
_SLOTS = 4
#: The most runs at once.
_CAPS = {"innocent": 3, "one": 1, "one_late": 1, "fair": 2, "weighed": 2}
_PATIENCE = 30.0


class Post:
    """One worker, and the messages that it gets.

    Args:
        workers: starts it, with a journal of their own.
        pool: its pool.
    """

    def __init__(self, workers: Workers, pool: str) -> None:
        workers.conf.update(worker_log_format=LOG_FORMAT, throttle_lease=10)
        self.workers, self.worker = workers, workers.start(ODD, pool=pool, concurrency=_SLOTS)
        self.app, self.state = workers.app(ODD), State(lambda: workers.broker)
        self.ids: Counter[str] = Counter()
        self.sent = 0

    def play(self, seeds: Iterable[int]) -> Iterator[str]:
        """Send the messages of these seeds; yield what goes wrong."""
        of_seeds = iter([seed for seed in seeds if odd_message(seed) is not None])
        while some := list(islice(of_seeds, AT_ONCE)):
            yield from (f"seeds {some}: {wrong}" for wrong in self._send(some))
        yield from self._at_the_end()

    def _send(self, seeds: list[int]) -> Iterator[str]:
        before, random = len(lines_of_ours(self.worker.log())), Random(seeds[0])
        odd = [each for each in map(odd_message, seeds) if each is not None]
        names = [random.choice(("innocent", "innocent", "plain", *TASKS)) for _ in range(INNOCENT)]
        innocent = [raw(f"{ODD}.{name}", body=[[f"i{seeds[0]}-{number}"], {}, {}]) for number, name in enumerate(names)]
        self.ids.update(str(each["headers"].get("id")) for each in odd + innocent)
        mixed = odd + innocent
        random.shuffle(mixed)
        put(self.workers.broker, *mixed)
        self.sent += len(odd)
        results = [self.app.app.AsyncResult(each["headers"]["id"]) for each in innocent]
        try:
            until(lambda: all(each.state == "SUCCESS" for each in results), timeout=_PATIENCE, every=0.1)
        except AssertionError:
            left = [
                f"{name} {each.state}" for name, each in zip(names, results, strict=True) if each.state != "SUCCESS"
            ]
            yield f"innocent calls did not run: {left}\n{self.worker.tail()}"
        written = lines_of_ours(self.worker.log())[before:]
        if len(written) >= MOST_LINES * len(odd):
            yield f"{len(written)} lines in the log: {written[-40:]}"
        for limit in self.state.throttle.status(most=1000):
            if limit.permits is not None and limit.held > limit.permits:
                yield f"{limit.bucket} has {limit.held} holders"

    def _at_the_end(self) -> Iterator[str]:
        journal: Journal = self.workers.journal
        try:
            until(lambda: not self.state.holders and not self.state.count, timeout=_PATIENCE, every=0.2)
        except AssertionError:
            yield f"left in the store: {sorted(self.state.holders)}, {self.state.parked}"
        for _ in range(_SLOTS):
            self.app.let.delay("a slot")
        try:
            journal.wait_running(_SLOTS, "a slot")
        except AssertionError as error:
            yield f"slots are lost: {error}"
        journal.let_all_go()
        for each in self.state.throttle.set_aside():
            yield f"set aside: {each}"
        runs = [run for run in journal.runs() if run.finished]
        for name, most in _CAPS.items():
            if (found := peak(run for run in runs if run.task == f"{ODD}.{name}")) > most:
                yield f"{found} runs of {name} at once"
        for task_id, times in Counter(str(run.task_id) for run in runs if run.label != "a slot").items():
            if times > self.ids[task_id]:
                yield f"{task_id} ran {times} times, sent {self.ids[task_id]} times"


def summary(log: str) -> dict[str, Any]:
    """Return how many lines of ours a log has, by their beginnings."""
    return dict(Counter(line.partition("> ")[2][:40] for line in lines_of_ours(log)).most_common(12))
