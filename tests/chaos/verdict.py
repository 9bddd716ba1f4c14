"""The violations of a run, judged by the notes of the tasks, the logs of the workers and the rest in the store."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import combinations

from tests.chaos.kinds import CAPS, LEASE, RATES
from tests.chaos.town import Town, Trouble
from tests.chaos.traffic import Published
from tests.support.journal import Run

__all__ = ["Verdict"]

#: A lease can be lost if a worker is cut off for longer than from just before a renewal was due to its end.
_LEASE_AT_RISK = LEASE * 0.6
#: How long a worker may need to tell of an end, on a busy machine.
_TELLS_WITHIN = 1.5
#: How long it may take until a process reports that a run began there.
_HEARS_WITHIN = 0.5
#: How long a task that starts at once may need from the worker's log to its own first line in the journal.
_BEGINS_WITHIN = 0.3
#: Seconds for which a worker may have a message unacknowledged while its store is away.
_UNACKED_FOR = 30.0
_LOST = re.compile(r"lease_lost: task \S+\[(\S+)\]")
_NO_FILES = re.compile(r"Task \S+\[(\S+)\] raised unexpected: OSError\(24")
_UNPUBLISHED = re.compile(r"Task \S+\[(\S+)\] reject requeue=False: (?:Connection|Error|Valkey|Redis|\n?Retry limit)")
_RECEIVED = re.compile(r"^\[(\S+ \S+): INFO/MainProcess\] Task \S+\[(\S+)\] received$", re.MULTILINE)
_CELERY_ENDS = {
    "Unrecoverable error: AttributeError(\"'NoneType' object has no attribute 'hostname'\")":
        "kombu cannot put messages back while the broker is down",
    # A pool's process whose end has been noticed, but that cannot be waited for yet, has no descriptor to listen to.
    "Unrecoverable error: ValueError('file descriptor is None')":
        "Celery connected again in the moment in which a process had ended",
    "Too many open files. Aborting...": "Celery ends a worker that has no descriptor for its broker",
}  # fmt: skip
#: Of the main thread's stack, as `town` asks for it: the rest of a result will never come.
_CELERY_WAITS = re.compile(r"in _flush_outqueue\n(?:.*\n){1,4}.*in recv\n(?:.*\n){1,4}.*in _recv_bytes\n")
_FOREVER = float("inf")


class Verdict:
    """Judges one run of chaos.

    Attributes:
        violations: one line each.
        excused: how often the failure table allows a double run, by why.
    """

    def __init__(self, town: Town, published: Sequence[Published]) -> None:
        self.violations: list[str] = []
        self.excused: Counter[str] = Counter()
        self._town, self._published = town, published
        self._calls = {each.call.label: each for each in published}
        self._logs = {worker.name: worker.log() for worker in town.workers.started}
        #: By task id: where and when it was received, by the monotonic clock.
        self._received: dict[str, list[tuple[str, float]]] = defaultdict(list)
        ahead = time.time() - time.monotonic()
        for name, log in self._logs.items():
            for at, task in _RECEIVED.findall(log):
                when = datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone()
                self._received[task].append((name, when.timestamp() - ahead))
        self._unpublished = {task for log in self._logs.values() for task in _UNPUBLISHED.findall(log)}
        self._without_files = {task for log in self._logs.values() for task in _NO_FILES.findall(log)}
        self._lost_lease = {task for log in self._logs.values() for task in _LOST.findall(log)}
        self._parked = {each["task_id"] for each in town.journal.events() if each["event"] == "parked"}
        self._runs: list[Run] = [replace(run, worker=run.worker.partition("@")[0]) for run in town.journal.runs()]
        self._by_label: dict[str, list[Run]] = defaultdict(list)
        for run in self._runs:
            self._by_label[run.label].append(run)

    def judge(self) -> None:
        """Ask everything."""
        for each in self._published:
            if each.call.kind.throttled:
                self._judge_lost(each, self._by_label[each.call.label])
                self._judge_twice(each, self._by_label[each.call.label])
        self._judge_identities()
        self._judge_caps()
        self._judge_rates()
        self._judge_workers()

    # -- lost ---------------------------------------------------------------------------------------------------------

    def _judge_lost(self, each: Published, runs: list[Run]) -> None:
        kind = each.call.kind
        if any(run.outcome == kind.final for run in runs) or kind.may_miss or each.revoked or not each.sure:
            return
        excuse = "" if kind.late else self._early_lost(each, runs)
        if not excuse and (why := self._celery_lost(each, runs)):
            excuse = f"lost: {why}"
        if each.task_id in self._without_files:
            excuse = "its process, begun in these moments, had no file descriptor for the journal"
        if excuse:
            self.excused[excuse] += 1
        else:
            self._say("lost", each, runs)

    def _early_lost(self, each: Published, runs: list[Run]) -> str:
        if any(self._was_killed(run) for run in runs):
            return "early acknowledged, and its process was killed"
        if each.call.kind.then == "slow_down" and any(self._killed_untold(run) for run in runs):
            # `RateLimited` puts it back in line, but by the worker's message, and no other process has it.
            return "early acknowledged, and its worker was killed before it could put it back"
        if not runs and self._killed_at_once(each):
            # A process reports that it has a job, which is acknowledged then, and only after that begins it.
            return "early acknowledged, and its process was killed before it began"
        return ""

    def _was_killed(self, run: Run) -> bool:
        """Return whether a run was ended from outside; a stopping process may end its run by an exception."""
        if run.stopped is None or not run.finished:
            return True
        # A process that was frozen ends its body only when it goes on, long after its worker was killed.
        return run.outcome == "raised" and any(self._troubles("killed", run.worker, run.started, run.stopped + 1))

    def _killed_untold(self, run: Run) -> bool:
        """Return whether its worker was killed before it can have reported its end."""
        # A process may end its body after its main process was killed, and begin it in that moment.
        since, till = run.started - _BEGINS_WITHIN, self._told_by(run.worker, _end(run))
        return any(self._troubles("killed", run.worker, since, till))

    def _killed_at_once(self, each: Published) -> bool:
        """Whether a worker, or a process of it, was killed in the moment in which it may have started a task."""
        return any(
            trouble.worker == worker and "killed" in trouble.what and 0 <= trouble.began - at < _BEGINS_WITHIN
            for worker, at in self._received[each.task_id]
            for trouble in self._town.troubles
        )

    def _celery_lost(self, each: Published, runs: list[Run]) -> str:
        """Why it never came to the gate (again), if it did not."""
        received = len(self._received[each.task_id])
        if not received:
            # kombu takes a message out of its list before it notes that it has it.
            return "the broker's transport lost it on its way to a worker"
        if (
            not runs
            and each.task_id not in self._parked
            and all(self._lost_since(*at) for at in self._received[each.task_id])
        ):
            return "the broker's transport lost it on its way back from a worker that was killed, or lost the broker"
        unpublished = each.task_id in self._unpublished or received <= len(runs)
        if each.call.kind.then == "retry" and runs and unpublished:
            return "its retry was not published, or lost as above"
        if each.call.kind.then == "requeue" and runs and received <= len(runs) and each.task_id not in self._parked:
            back = max(_end(run) for run in runs)
            if any("killed" in trouble.what and back - 1 < trouble.began < back + 2 for trouble in self._town.troubles):
                return "the broker's transport lost it on its way to a worker that was killed"
        return ""

    def _lost_since(self, worker: str, at: float) -> bool:
        """Return whether a worker that received a message was killed after that, or soon lost the broker."""
        return any(self._troubles("killed", worker, at, _FOREVER)) or any(
            self._troubles("broker", worker, at, at + _UNACKED_FOR)
        )

    # -- twice --------------------------------------------------------------------------------------------------------

    def _judge_twice(self, each: Published, runs: list[Run]) -> None:
        for first, second in _pairs(runs):
            if first.task_id != second.task_id:
                continue  # of a singleton's label there is one call, so this is another kind of wrong: judged below
            if second.started < _end(first):
                self._unless_excused("at once", each, [first, second], self._lease_lost(first))
            elif first.outcome == each.call.kind.final and each.call.kind.final == "returned":
                before = [run for run in runs if run.started < second.started]
                excuse = next(filter(None, map(self._may_repeat, before)), "") or self._lease_lost(second)
                self._unless_excused("again", each, runs, excuse)

    def _judge_identities(self) -> None:
        identities: dict[str, list[Run]] = defaultdict(list)
        for run in self._runs:
            each = self._calls.get(run.label)
            if each is not None and each.call.kind.once:
                identities[each.call.args["order"]].append(run)
        for order, runs in identities.items():
            for first, second in _pairs(runs):
                each = self._calls[second.label]
                if first.task_id == second.task_id:
                    continue  # judged above
                if second.started < _end(first):
                    self._unless_excused(f"at once, identity {order}", each, [first, second], self._lease_lost(first))
                elif order.startswith("once-") and first.outcome == "returned":
                    excuse = self._may_repeat(first)
                    self._unless_excused(f"though remembered, identity {order}", each, [first, second], excuse)

    def _may_repeat(self, run: Run) -> str:
        """Why a task whose run has come to its end may run again: its worker could not say so."""
        stopped = _end(run)
        till = self._told_by(run.worker, stopped)
        if self._killed_untold(run):
            return "its worker was killed before it could tell"
        if any(self._troubles("child killed", run.worker, stopped - 0.05, stopped + _TELLS_WITHIN)):
            return "its process was killed right after its end"
        if any(self._troubles("broker", run.worker, run.started - 0.5, till)):
            return "the broker could not be told"
        if run.started > self._town.told_to_end.get(run.worker, _FOREVER) - _HEARS_WITHIN:
            # Then Celery forgets the jobs that no process has accepted (`AsynPool.flush`), though they may be on their
            # way to one or run there: their ends are neither seen nor acknowledged.
            return "its worker was told to end before it had heard that the run began"
        if self._stopped_without_store(run):
            return "its worker was stopped, and could not report to the store"
        return self._lease_lost(run)

    def _stopped_without_store(self, run: Run) -> bool:
        """Return whether its worker ended while the store was away, for which it waits a third of a lease."""
        return any(
            each.what == "told to end"
            and any(self._troubles("store", run.worker, each.began, each.ended + _TELLS_WITHIN))
            for each in self._troubles("told to end", run.worker, run.started, _FOREVER)
        )

    def _told_by(self, worker: str, since: float) -> float:
        """Return when a worker can have reported something, after all its mishaps."""
        till = since + _TELLS_WITHIN
        for trouble in sorted(self._town.troubles, key=lambda each: each.began):
            if trouble.worker in ("", worker) and "killed" not in trouble.what and trouble.began <= till:
                till = max(till, trouble.ended + _TELLS_WITHIN)
        return till

    def _lease_lost(self, run: Run) -> str:
        # While the store is away for all, no lease ends.
        alone = [
            trouble
            for what in ("frozen", "store")
            for trouble in self._troubles(what, run.worker, run.started - 1.0, _end(run) + 1.0)
            if trouble.worker
        ]
        if alone and run.task_id in self._lost_lease:
            return "its lease was lost, as the log says"
        if any(trouble.ended - trouble.began > _LEASE_AT_RISK for trouble in alone):
            return "its worker was cut off for long"
        return ""

    def _troubles(self, what: str, worker: str, since: float, till: float) -> Iterator[Trouble]:
        for each in self._town.troubles:
            if each.what == what and each.worker in ("", worker) and each.began <= till and each.ended >= since:
                yield each

    # -- caps ---------------------------------------------------------------------------------------------------------

    def _judge_caps(self) -> None:
        by_bucket: dict[str, list[tuple[Run, int]]] = defaultdict(list)
        for run in self._runs:
            for bucket, cost in self._calls[run.label].call.buckets.items() if run.label in self._calls else ():
                by_bucket[bucket].append((run, cost))
        for bucket, runs in by_bucket.items():
            cap = CAPS.get(bucket.partition("[")[0])
            if cap is not None:
                self._judge_cap(bucket, cap, runs)

    def _judge_cap(self, bucket: str, cap: int, runs: list[tuple[Run, int]]) -> None:
        for run, _ in runs:
            beside = [(other, cost) for other, cost in runs if other.started <= run.started < _end(other)]
            used = sum(cost for _, cost in beside)
            if used <= cap:
                continue
            counted = [(other, cost) for other, cost in beside if not self._lease_lost(other)]
            if sum(cost for _, cost in counted) > cap:
                told = ", ".join(_told(other) for other, _ in beside)
                self.violations.append(f"cap of {bucket}: {used} of {cap} at {run.started:.3f}: {told}")
            else:
                self.excused["more at once, with a lease lost"] += 1

    def _judge_rates(self) -> None:
        for limit, (count, burst) in RATES.items():
            starts = [run.started for run in self._runs if self._calls[run.label].call.kind.name == limit]
            for first, since in enumerate(starts):
                within = sum(1 for start in starts[first:] if start < since + 5)
                # Of grants it is exact; a body may begin later than others, on a frozen child say.
                if within > (count * 5 + burst) * 1.25 + 4:
                    self.violations.append(f"rate of {limit}: {within} starts within 5 s from {since:.3f}")
                    break

    # -- workers ------------------------------------------------------------------------------------------------------

    def _judge_workers(self) -> None:
        for name, how in self._town.died:
            log, ended = self._logs[name], not how.startswith("did not end")
            if ended and (why := next((why for said, why in _CELERY_ENDS.items() if said in log), "")):
                self.excused[f"ended by itself: {why}"] += 1
            elif not ended and _CELERY_WAITS.search(log):
                # A time limit kills a process that writes a result larger than a pipe (the traceback of a broker that
                # is down will do): billiard reads the rest for ever, as it has the other end of that pipe open, too.
                self.excused["did not end: billiard waits for a result whose process was killed as it wrote it"] += 1
            else:
                self.violations.append(f"{name} {how}")
        for name, log in self._logs.items():
            for block in _tracebacks(log):
                if _is_ours(block):
                    self.violations.append(f"traceback in the log of {name}:\n{block}")

    # -- saying it ----------------------------------------------------------------------------------------------------

    def _unless_excused(self, what: str, each: Published, runs: list[Run], excuse: str) -> None:
        if excuse:
            self.excused[f"ran {what.partition(',')[0]}: {excuse}"] += 1
        else:
            self._say(f"ran {what}", each, runs)

    def _say(self, what: str, each: Published, runs: Iterable[Run]) -> None:
        ran = "; ".join(_told(run) for run in runs) or "never ran"
        self.violations.append(f"{what}: {each.call.label} {each.task_id}, published {each.at:.3f}: {ran}")


def _end(run: Run) -> float:
    return _FOREVER if run.stopped is None else run.stopped


def _told(run: Run) -> str:
    stopped = "running" if run.stopped is None else f"{run.stopped:.3f}"
    again = " redelivered" if run.redelivered else ""
    return f"{run.label} {run.started:.3f}-{stopped} {run.outcome} on {run.worker} attempt {run.attempt}{again}"


def _pairs(runs: list[Run]) -> Iterator[tuple[Run, Run]]:
    """Each run with every later one."""
    return combinations(sorted(runs, key=lambda run: run.started), 2)


def _tracebacks(log: str) -> Iterator[str]:
    """The blocks of a log that have a traceback, or an error of ours, with the line before."""
    lines = log.splitlines()
    begins = [number for number, line in enumerate(lines) if re.match(r"\[\d{4}-", line)]
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        block = "\n".join(lines[begin:end])
        if "Traceback (most recent call last)" in block or "celery_throttle: error in" in block:
            yield block


def _is_ours(block: str) -> bool:
    files = re.findall(r'File "([^"]+)"', block)
    if "NotRegistered:" in block or "Too many open files" in block:  # as Celery says it; as a mishap has it
        return False
    if "in _be_odd" in block:
        return False
    return "celery_throttle: error" in block or (bool(files) and "/celery_throttle/" in files[-1])
