"""Make a run of a parked task that got its permits here, or end the task if it must not run."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from celery.exceptions import NotRegistered
from celery.worker import state

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.history import Place
from celery_throttle.worker.celery_side.duplicates import end_duplicate
from celery_throttle.worker.celery_side.failing import end_unstarted, may_pass
from celery_throttle.worker.celery_side.parsing import content_of_parked
from celery_throttle.worker.celery_side.requests import Declined, sender_of
from celery_throttle.worker.reported.signals_and_events import report_resumed
from celery_throttle.worker.runs import Permit, Run
from celery_throttle.worker.user_code import WorkerStops, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.exchange_reply import Grant
    from celery_throttle.worker.celery_side.broker import Broker
    from celery_throttle.worker.celery_side.requests import RequestFactory
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.notices import Notices
    from celery_throttle.worker.running import Running
    from celery_throttle.worker.store_side.avoided_queues import AvoidedQueues
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Resuming"]

logger = logging.getLogger(__name__)

#: Seconds until a task whose result could not be stored goes back in line. Without a pause the store would grant its
#: permits again at once.
_PAUSE = 1.0


class Resuming:
    """Resumes parked tasks; all on the loop.

    Args:
        running: holds the permits of the runs.
        broker: counts its connections.
        loop: the loop that everything happens on.
        timekeeper: calls later, when a task goes back in line.
        notices: log which tasks were resumed.
        avoided: queues whose parked tasks are left to other workers.
    """

    def __init__(
        self,
        running: Running,
        broker: Broker,
        loop: Loop,
        timekeeper: Timekeeper,
        notices: Notices,
        avoided: AvoidedQueues,
    ) -> None:
        self._running, self._broker, self._loop, self._timekeeper = running, broker, loop, timekeeper
        self._notices, self._avoided = notices, avoided
        self._unreported: dict[Callable[[], None], Run | None] = {}

    @property
    def waiting(self) -> list[Run]:
        """The runs that keep their permits until they go back in line."""
        return [run for run in self._unreported.values() if run is not None]

    def run_of(self, grant: Grant, calls: Calls, requests: RequestFactory) -> Run | None:
        """Return a run that can start; None if the task does not run here, after that was reported to the store."""
        run = self._unpack(grant, calls, requests)
        if run is None:
            return None
        run.waited = grant.waited
        lock = grant.lock
        run.lock = lock.spec if lock else ""
        self._running.hold_permit(run, Permit(run))
        self._avoided.reset(run.queue)
        request = run.request
        if grant.expired:
            self._report(run, lambda: end_unstarted(request, grant.dropped))
            return None
        if lock and not lock.starts:
            if self._report(run, lambda: end_duplicate(request, lock)) and lock.verdict != "done":
                calls.tally.add(run.needs.text, Place.DUPLICATES)
            return None
        revoked: list[bool] = []
        if not self._attempt(run, lambda: revoked.append(request.revoked())):
            return None
        if any(revoked):
            self._running.end(run, Facts(began=False, message=Message.NOBODY))
            return None
        self._notices.resumed(request, grant.waited)
        state.task_reserved(request)
        report_resumed(run)
        if lock and lock.fencing_token:
            run.fence(lock.fencing_token)
        return run

    def _report(self, run: Run, report: Callable[[], None]) -> bool:
        """Report the end of a task that does not run, by the given function, then give its permits back."""
        reported = self._attempt(run, report)
        if reported:
            self._running.end(run, run.facts_unrun)
        return reported

    def _attempt(self, run: Run, step: Callable[[], object]) -> bool:
        """Take a step that may write a result; put the task back in line after a pause if the backend is away.

        By any other error the task fails: another try would have the same error.
        """
        return self._attempt_of(
            run.id,
            step,
            lambda: self._running.end(run, Facts(began=False, message=Message.PLACE)),
            lambda error: self._running.cannot_start(run, error),
            run,
        )

    def _attempt_of(
        self,
        task: str,
        step: Callable[[], object],
        back: Callable[[], None],
        end: Callable[[Exception], None],
        run: Run | None = None,
    ) -> bool:
        try:
            call(step)
        except Exception as error:  # noqa: BLE001 - of any backend
            if not may_pass(error):
                end(error)
                return False
            logger.error("Parked task %s goes back to its place in line for a moment: %r", task, error)  # noqa: TRY400
            self._put_back(back, run)
            return False
        return True

    def _put_back(self, end: Callable[[], None], run: Run | None) -> None:
        self._unreported[end] = run
        self._timekeeper.later(_PAUSE, lambda: self._loop.post(self._put_back_now, end))

    def _put_back_now(self, end: Callable[[], None]) -> None:
        if end in self._unreported:
            del self._unreported[end]
            end()

    def finish(self) -> None:
        """Put all those tasks back in line now, for other workers, because this one stops."""
        for end in tuple(self._unreported):
            self._put_back_now(end)

    def _unpack(self, grant: Grant, calls: Calls, requests: RequestFactory) -> Run | None:
        conclude = grant.lock.first if grant.lock and grant.lock.verdict == "conclude" else ""
        requeues: list[bool] = []
        try:
            make = partial(
                requests.make,
                redelivered=grant.deliveries > 0,
                # Neither may refer to the run, because the run refers to the request: see `unwatch`.
                on_ack=lambda *args: self._loop.post(self._acknowledged, grant.nonce, calls),
                on_reject=lambda logger, errors, requeue: requeues.append(requeue),
                conclude=conclude,
                lost=grant.lock.lost if grant.lock else False,
            )
            request = call(make, grant.message)
            content = call(content_of_parked, request, grant)
        except WorkerStops:
            calls.outbox.ended(grant.delivery, Facts(began=False, message=Message.PLACE))
            return None
        except Declined:
            message = Message.TAIL if any(requeues) else Message.NOBODY
            calls.outbox.ended(grant.delivery, Facts(began=False, message=message))
            return None
        except NotRegistered as error:
            # Another worker of the queue may have the task registered, now or after the next release.
            logger.error(  # noqa: TRY400 - its traceback is of no use
                "Parked task %s is %s, which no module of this worker registers: it goes to the end of its line, for a "
                "worker that has it",
                grant.task, error,
            )  # fmt: skip
            calls.outbox.ended(grant.delivery, Facts(began=False, message=Message.TAIL))
            self._avoided.avoid(grant.queue)
            return None
        except Exception as error:
            # As Celery's own consumer does with a message that cannot be used: content that may not be decoded.
            logger.exception("Parked task %s cannot run here", grant.task)
            self.fail(grant, calls, requests, error)
            return None
        return Run(
            request,
            content,
            epoch=self._broker.epoch,
            queue=grant.queue,
            group=calls.group,
            nonce=grant.nonce,
            code=grant.code,
            stored=True,
        )

    def fail(self, grant: Grant, calls: Calls, requests: RequestFactory, error: Exception) -> None:
        """End a parked task of which no run can be made."""
        place = Facts(began=False, message=Message.PLACE)
        failed = Facts(began=False, message=Message.NOBODY, result=Result.FAILURE)
        sender = sender_of(grant.message)
        fail = partial(requests.consumer.app.backend.mark_as_failure, sender.id if sender else grant.task, error)

        def end(why: object = "") -> None:
            if why:
                logger.error("Parked task %s fails, and its result cannot be stored: %r", grant.task, why)
            calls.outbox.ended(grant.delivery, failed)

        back = partial(calls.outbox.ended, grant.delivery, place)
        if self._attempt_of(grant.task, lambda: fail(request=sender), back, end):
            end()

    def _acknowledged(self, nonce: str, calls: Calls) -> None:
        # With late acknowledgement the store keeps the message until the permit is given back.
        permit = calls.held.get(nonce)
        run = permit.run if permit is not None else None
        if run is not None and run.nonce == nonce and run in self._running.runs and not run.request.task.acks_late:
            self._running.report_begun(run)
