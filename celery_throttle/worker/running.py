"""Give runs to the pool, hold their permits, and give the permits back when the runs end."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.history import Place
from celery_throttle.core.policy import costs_of, needs_text
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError, StoreUnavailable, ThrottleError
from celery_throttle.store.parcel import pack
from celery_throttle.tasks.publish import HEADER
from celery_throttle.worker.celery_side.failing import end_unstarted, fail, may_pass
from celery_throttle.worker.celery_side.wait_header import with_wait
from celery_throttle.worker.celery_side.watch import unwatch, watch
from celery_throttle.worker.runs import State
from celery_throttle.worker.user_code import call, safely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from celery_throttle.tasks.rate_limited import RateLimited
    from celery_throttle.worker.blocked import Blocked
    from celery_throttle.worker.celery_side.broker import Broker
    from celery_throttle.worker.celery_side.slots import Slots
    from celery_throttle.worker.celery_side.tasks import Tasks
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.notices import Notices
    from celery_throttle.worker.runs import Permit, Run
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets

__all__ = ["Running"]

logger = logging.getLogger(__name__)


class Running:
    """Gives runs to the pool, and reports to the store how they ended; all on the loop.

    Args:
        slots: the slots of Celery's pool.
        tasks: the throttled tasks: their limits and locks.
        loop: the loop that everything happens on.
        groups: the calls of each group, by its name.
        notices: log which tasks raised `RateLimited`.
        fail: ends the request of a finished run with an error, later if the result backend is away.
        blocked: notices runs that kept this process from renewing leases.
        broker: counts the connections that delivered the messages.
        closed: buckets whose permits are not passed on here.
        held: holds runs, of which those that ask the store have a slot.

    Attributes:
        runs: the runs in the pool.
        granted: runs that have their permits, and wait for a slot: no other run takes these slots.
    """

    def __init__(
        self,
        slots: Slots,
        tasks: Tasks,
        loop: Loop,
        groups: Mapping[str, Calls],
        notices: Notices,
        fail: Callable[[Run, Exception], None],
        blocked: Blocked,
        broker: Broker,
        closed: ClosedBuckets,
        held: HeldBack,
    ) -> None:
        self._slots, self._tasks, self._loop, self._groups, self._notices = slots, tasks, loop, groups, notices
        self._fail, self._blocked, self._broker, self._closed, self._held = fail, blocked, broker, closed, held
        self.runs: set[Run] = set()
        self.granted: deque[Run] = deque()
        self._passes_on = True

    @property
    def free_slots(self) -> int:
        """The number of slots in which a run starts at once; none is taken by the job of others."""
        return self._unused - self._slots.others.ahead

    @property
    def room(self) -> int:
        """The number of runs that the pool can take, with permits or without: they wait there behind jobs of others.

        But some pools would have the gate wait when they are full.
        """
        return self._unused - self._slots.others.blocking

    @property
    def room_for_granted(self) -> int:
        """The number of runs with permits that the pool can take."""
        return self.room + len(self.granted)

    def free_for(self, run: Run) -> int:
        """Return the number of slots for a run, which keeps no permit from others if it needs none."""
        return self.free_slots if run.guarded else self.room

    @property
    def _unused(self) -> int:
        """The number of slots that the gate has not taken."""
        taken = len(self.runs) + len(self.granted) + self._held.asking
        for calls in self._groups.values():
            taken += calls.offered
        return self._slots.size - taken

    def execute(self, run: Run) -> None:
        """Give a run to the pool, unless it was granted too late: the store was away in between."""
        if run.late:
            with self._over(run, Result.NOTHING, began=False):
                end_unstarted(run.request)
            return
        run.state = State.RUNNING
        self.runs.add(run)
        try:
            run.job = call(self._give_to_pool, run)
        except TaskRevokedError:
            self._unstarted(run, Message.NOBODY)
            return
        except Exception as error:
            # If Celery's signal handler raised, the pool may have the task, which then ends like all others.
            if self._slots.stopped(error):
                raise
            if run.request.time_start is not None:  # a solo pool has run it, and failed to store the result
                self._died(run, error)
                return
            if not may_pass(error):
                self.cannot_start(run, error)
                return
            self._unstarted(run, Message.PLACE if run.stored else Message.BROKER)
            raise
        if run.needs.text:
            safely(self._groups[run.group].tally.started, run)
        if self._loop.turning and not self._slots.passed_on:
            self._loop.wake()

    def _give_to_pool(self, run: Run) -> Any:
        if run.needs.text:
            with_wait(run.request, run.waited)
        watch(
            run,
            lambda result: self._loop.post(self._ended, run, result),
            lambda error: self._loop.post(self._limited, run, error),
        )
        return self._slots.run(run.request, lambda error: self._loop.post(self._died, run, error))

    def report_begun(self, run: Run) -> None:
        """Have the store drop the message of a task that is acknowledged early, because it begins."""
        if not run.reported_begun:
            run.reported_begun = True
            self._groups[run.group].outbox.began(run.delivery)

    @contextmanager
    def _over(self, run: Run, result: Result | None = None, *, began: bool = True) -> Iterator[None]:
        """Remove a run that the pool does not have any more, and give its permit back last, whatever is raised before.

        Args:
            run: the run.
            result: the run's result; None if the block fails its task.
            began: whether its body began.
        """
        self.runs.discard(run)
        try:
            run.state, run.job = State.GONE, None
            unwatch(run.request)
            yield
        finally:
            if result is None:
                # If the failure has to be stored later, the message is not acknowledged yet.
                result = Result.FAILURE if run.request.acknowledged else Result.NOTHING
            if run.permit is not None and not run.permit.goes_back:
                self.give_back(run, result, began=began)

    def _unstarted(self, run: Run, message: Message) -> None:
        with self._over(run, Result.NOTHING, began=False):
            self.end(run, Facts(began=False, message=message))

    def cannot_start(self, run: Run, error: Exception) -> None:
        """End a run by an error that each further start would have, and give back all that it has."""
        logger.error("Task %s[%s] cannot start: %r", run.request.name, run.id, error)
        with self._over(run, began=False):
            self._fail(run, error)

    # -- how runs end ----------------------------------------------------------------------------------------------

    def _ended(self, run: Run, result: Result) -> None:
        if run in self.runs:
            with self._over(run, result):
                self._blocked.ended(run)
                if run.needs.text:
                    self._groups[run.group].tally.ended(run, result)

    def _died(self, run: Run, error: BaseException) -> None:
        # Also after a body: the result backend was away, say. The message is not acknowledged, and is delivered again.
        if run not in self.runs:
            return
        text, task = "Task %s[%s] ended without an outcome: %r", (run.request.name, run.id, error)
        state.task_ready(run.request)
        if isinstance(error, Exception) and not may_pass(error):
            # A value of its message is the reason, so no other run of it could store an outcome either.
            logger.error(text, *task)
            with self._over(run):
                self._blocked.ended(run)
                self._fail_over(run, error)
        else:
            logger.error(text, *task, exc_info=error)
            self._ended(run, Result.NOTHING)

    def _limited(self, run: Run, error: RateLimited) -> None:
        if run not in self.runs:
            return
        with self._over(run):
            state.task_ready(run.request)
            try:
                self._go_back(run, error)
            except Exception as wrong:  # noqa: BLE001 - also what it put into its message, which cannot be stored
                self._fail_over(run, wrong)
                return
            self._notices.limited(run.request, error)
            run.request.send_event("throttle-rate-limited", retry_after=error.retry_after)
            self._groups[run.group].tally.add(run.needs.text, Place.SENT_BACK)

    def _go_back(self, run: Run, error: RateLimited) -> None:
        """Put a task back in line that raised `RateLimited`.

        Raises:
            Exception: it has no such line, or cannot go back; it has its permit then.
        """
        if wrong := _not_its_limit(run, error):
            raise wrong
        if run.permit is None or not run.needs.buckets:
            raise _no_line(run)
        if not _count_round(run, error.max_rounds):
            raise _too_often(run, error)
        costs = costs_of(run.needs.text)
        about = [each for each in costs if error.limit in (None, each[0].name)] or costs
        self._send_back(run, run.permit, error.retry_after, needs_text(about))

    def _send_back(self, run: Run, permit: Permit, pause: float = 0.0, about: str = "") -> None:
        """Put a task back in line together with its message, because the store may not have the message any more."""
        run.parcel = pack(run.request.message)
        outbox = self._groups[run.group].outbox
        outbox.settle(permit)
        permit.go_back()
        run.pause = pause, about
        outbox.arrived.append(run)

    def _fail_over(self, run: Run, error: Exception) -> None:
        if run.needs.text:
            self._groups[run.group].tally.ended(run, Result.FAILURE)
        self._fail(run, error)

    def not_sent_back(self, run: Run) -> None:
        """End a run that goes back in line if the worker stops before the store confirms that it has the message."""
        request = run.request
        lost = request.acknowledged or run.reported_begun  # else the broker or the store still has the message
        self.give_back(run, Result.FAILURE if lost else Result.NOTHING, began=True)
        if not lost:
            return
        reason = "was to go back in line, and its worker stopped before the store had its message"
        try:
            call(fail, request, StoreUnavailable(f"Task {request.name} {reason}"))
        except Exception:  # the other runs have to be ended, too
            logger.exception("Task %s[%s] %s; no result could be stored", request.name, request.id, reason)

    def lost(self) -> None:
        """Give back the permits of jobs that end with no report, because their child is gone and the pool is closed."""
        for run in [run for run in self.runs if self._slots.has_lost(run)]:
            safely(self._unbegun, run)

    def discarded(self) -> None:
        """Give back the permits of jobs that the pool dropped, unbegun, when the consumer stopped; for good or not."""
        for run in list(self.runs):
            if self._slots.discarded(run):
                safely(self._unbegun, run)
            else:
                state.requests.setdefault(run.request.id, run.request)  # Celery removes unbegun requests here

    def _unbegun(self, run: Run, *, began: bool = False) -> None:
        with self._over(run, Result.NOTHING, began=began):
            pass

    def close(self) -> None:
        """Pass no permits on any more, so that tasks that wait elsewhere get them."""
        self._passes_on = False
        for calls in self._groups.values():
            calls.outbox.unspare()

    def finish(self) -> None:
        """Give back all permits, because the pool has stopped."""
        for run in list(self.runs):
            safely(partial(self._unbegun, began=True), run)

    # -- permits ---------------------------------------------------------------------------------------------------

    def hold_permit(self, run: Run, permit: Permit) -> None:
        """Hold the permits of a run, and renew their lease from now on."""
        run.permit, run.held_since = permit, monotonic()
        self._groups[run.group].held[run.nonce] = permit

    def forget_permit(self, run: Run) -> None:
        """Stop holding a run's permits here."""
        self._groups[run.group].held.pop(run.nonce, None)
        run.permit = None

    def give_back(self, run: Run, result: Result, *, began: bool) -> None:
        """Pass the permits of a run that has ended on to the next run of the same needs, or free them."""
        permit = run.permit
        if permit is None:
            return
        facts = run.facts(result, began=began, epoch=self._broker.epoch)
        if not permit.lapsed and self._may_pass_on(run, facts):
            self.forget_permit(run)
            self._groups[run.group].outbox.spare(permit, result)
        else:
            self.end(run, facts)

    def _may_pass_on(self, run: Run, facts: Facts) -> bool:
        is_over = facts.began and facts.message is Message.NOBODY and facts.result is not Result.NOTHING
        is_over = is_over and not run.being_acknowledged
        return self._passes_on and is_over and self._tasks.is_plain(run) and not self._closed.keep_waiting(run)

    def end(self, run: Run, facts: Facts) -> None:
        """Free the permits of a run, and report the facts of its end."""
        calls, permit = self._groups[run.group], run.permit
        if permit is None:
            return
        if run.reported_begun and facts.message is Message.PLACE and facts.result is Result.NOTHING:
            # The store dropped the message when this run was about to begin, and then its body did not begin.
            self._send_back(run, permit)
            return
        calls.freed += not run.needs.buckets or self._closed.keep_waiting(run)
        calls.outbox.settle(permit)
        if run.being_acknowledged and facts.message is Message.NOBODY:
            calls.outbox.ended_unacked(run, facts)
        else:
            calls.outbox.ended(run.delivery, facts, run.needs.text)
        self.forget_permit(run)

    def forget(self, request: Any) -> None:
        """Remove a request that does not run here now from Celery's lists."""
        state.reserved_requests.discard(request)
        task_id: str = request.id
        if state.requests.get(task_id) is request:
            del state.requests[task_id]
            # A second delivery must not hide the first one from `inspect` and `revoke`.
            state.requests.update((task_id, run.request) for run in self.runs if run.request.id == task_id)


def _not_its_limit(run: Run, error: RateLimited) -> Exception | None:
    """Return an error if `RateLimited` names a limit that the task does not have, else None."""
    names = [bucket.name for bucket, _ in costs_of(run.needs.text)]
    if error.limit is None or error.limit in names or not names:
        return None
    return ConfigurationError(
        f"Task {run.request.name} raised RateLimited(limit={error.limit!r}), but has no such limit, only "
        f"{', '.join(map(repr, names))}: name one of them, or leave limit= out"
    )


def _too_often(run: Run, error: RateLimited) -> Exception:
    """Return the error of a task that went back in line ``max_rounds`` times; to Celery `RateLimited` is no failure."""
    return ThrottleError(
        f"Task {run.request.name} raised RateLimited ({error}) after {counted(error.max_rounds or 0, 'round')}, its "
        f"max_rounds"
    )


def _no_line(run: Run) -> Exception:
    """Return the error of a task that raised `RateLimited` and has no line to go back to."""
    reason = f"Task {run.request.name} raised RateLimited, but it"
    if run.needs.buckets:
        return StoreUnavailable(f"{reason} ran without a permit, since the store was out of reach")
    return ConfigurationError(f"{reason} has no limit: give it one, limit=5 or rate='100/m'")


def _count_round(run: Run, most: int | None) -> bool:
    """Count a round of the task; return False if it has had as many as it may."""
    headers: dict[str, Any] = run.request.message.headers
    if most is not None and run.content.rounds >= most:
        return False
    about = headers.get(HEADER)
    headers[HEADER] = {**(about if isinstance(about, dict) else {}), "rounds": run.content.rounds + 1}
    return True
