"""The world: its processes, the effect of each step, and the faults that each step excuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from random import Random
from typing import Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state

from celery_throttle import LimitExceeded, RateLimited
from tests.simulation.book import Attempt, Book, Run
from tests.simulation.broker import Broker, Channel, Delivery, Letter
from tests.simulation.invariants import REVOKED, Caps, Violation, check_begin, check_pause, check_told, overtaken
from tests.simulation.network import Ask, Network, Pipe
from tests.simulation.pool import Job, einfo, request_of
from tests.simulation.scene import CONCLUDE, HEADER, LEASE, ResultsAway, Scene
from tests.simulation.server import Server
from tests.simulation.workers import (
    HERE,
    Killed,
    Operator,
    Worker,
    answers_to,
    in_task,
    name_of,
    store_told_of_success,
)

__all__ = ["OUTCOMES", "World"]

OUTCOMES = ("success", "failure", "retry", "ignore", "reject", "requeue", "limited", "lost")
_ERRORS: dict[str, BaseException] = {
    "failure": ValueError("no"),
    "retry": Retry("again", exc=ValueError("no")),
    "ignore": Ignore(),
    "reject": Reject("no"),
    "requeue": Reject("no", requeue=True),
    "limited": RateLimited(0.5),
    "lost": WorkerLostError("killed"),
}
#: Errors of ours that a task fails with which does not run (again).
_SAID_INSTEAD = ("DuplicateTask", "StoreUnavailable", "TaskRevokedError")
_LEASE_US = round(LEASE * 1_000_000)
_VISIBILITY = 20.0
#: Chance that workers get the revoke of a task since a newer call of it was published.
_HEARD = 0.7


class World:
    """One seed's world."""

    def __init__(self, seed: int, server: Server, scene: Scene, *, verbose: bool = False) -> None:
        self.seed, self.scene, self.verbose = seed, scene, verbose
        self.rng = Random(f"simulation {seed}")
        self.clock = HERE.clock
        self.clock.reset()
        self.network = Network(server, self.clock, self.rng)
        HERE.reset(self.network)
        self.broker = Broker(self.acknowledged)
        self.book, self.caps = Book(), Caps(scene)
        self.workers: list[Worker] = []
        self.operator = Operator(scene.app)
        #: Tasks that the operator has published and not reported yet.
        self.drains: list[tuple[str, list[Letter]]] = []
        self.routes: dict[str, tuple[str, str]] = {}
        #: Since when, by limit.
        self.paused: dict[str, int] = {}
        #: By task.
        self.queue_of: dict[str, str] = {}
        #: Whether the result backend is out of reach, for the gate: Celery's own writes arrive.
        self.results_away = False
        #: Whether all messages arrive at once, and the order of starts counts.
        self.prompt = False
        self._started: list[Attempt] = []
        self.step = 0
        self._digest = hashlib.blake2b(digest_size=8)
        self._names = 0
        scene.app.told, scene.app.send, scene.app.revoke = self._told, self._sent, self._replaced
        scene.app.ids = lambda: f"p{HERE.number()}"

    # -- events, in words ----------------------------------------------------------------------------------------------

    def say(self, *what: Any) -> None:
        text = " ".join(map(str, what))
        self._digest.update(text.encode())
        if self.verbose:
            print(f"{self.step:4} {(self.clock.now_us - 1_800_000_000_000_000) / 1e6:9.3f}  {text}")  # noqa: T201

    @property
    def digest(self) -> str:
        """Of everything that happened so far."""
        return self._digest.hexdigest()

    def _told(self, task_id: str, what: str) -> None:
        """Celery, or the gate, reports that a task does not run, or how it failed."""
        worker, entry = HERE.worker, self.book.entries.get(task_id)
        if worker is not None:
            worker.outside()
        if self.results_away and worker is not None and not HERE.celery_says:
            self.say("not told", task_id, what)
            if entry is not None and entry.kind.late:
                entry.may_begin_again("its failure could not be stored, so its message stays, as in Celery")
            raise ResultsAway(f"cannot tell {task_id} {what}")
        self.say("told", task_id, what)
        if entry is None:
            return
        if worker is not None:
            worker.over_here.append(task_id)
        if what in _SAID_INSTEAD or "revoked" in what:
            check_told(entry, what, self.book)
            entry.told = True
            entry.excuse(what)
            if worker is not None:
                worker.withdrawn.discard(task_id)

    def _replaced(self, task_id: str) -> None:
        """The publisher of a newer call revokes the older ones; some workers may miss it, such as later ones."""
        heard = self.rng.random() < _HEARD
        self.say("replaced", task_id, "" if heard else "unheard")
        entry = self.book.entries.get(task_id)
        if heard:
            state.revoked.add(task_id)
        if heard and entry is not None:
            entry.replaced = True
            entry.excuse("replaced")

    def heal(self) -> None:
        """Everything can be reached again."""
        self.network.cut_off.clear()
        self.network.fill(full=False)
        self.results_away = False

    # -- publishing --------------------------------------------------------------------------------------------------

    def _sent(self, headers: dict[str, Any], body: str, queue: str) -> None:
        HERE.to_outside()
        exchange, key = self.routes.get(queue, ("", queue))
        self.published = headers["id"]
        properties = {"correlation_id": self.published, "reply_to": "", "delivery_mode": 2, "priority": 0}
        self.broker.publish(Letter(headers, properties, body, queue, exchange, key))

    def publish(
        self, name: str, arguments: dict[str, Any], queue: str, task_id: str | None, doom: int | None = None
    ) -> None:
        """Publish a call; ``doom``: after how many messages to the outside the publisher is killed."""
        self.published = ""
        try:
            with HERE.having("doom", doom):
                result = self.scene.publish(name, arguments, queue, task_id=task_id)
        except LimitExceeded:
            self.say("publish", name, "refused")
            return
        except Killed:
            self.say("publish", name, arguments, queue, self.published, "killed")
        else:
            self.say("publish", name, arguments, queue, result.id, "" if self.published else "swallowed")
        if self.published:
            self.book.publish(self.published, self.scene.kinds[name], arguments, 0)

    def _publish_again(self, run: Run) -> None:
        """The body raises Retry: it has published itself before."""
        attempt, request = run.attempt, run.job.request
        entry, headers = attempt.entry, {HEADER: request[HEADER]} if request.get(HEADER) else {}
        name, retries = entry.kind.name, attempt.number + 1
        with in_task(self.scene.app, request):
            options = {"task_id": entry.task_id, "retries": retries, "headers": headers}
            self.scene.publish(name, entry.arguments, self.queue_of[name], **options)
        if (known := entry.attempts.get(retries)) is not None:
            # This attempt ran twice, as it was allowed to, and each run has sent the next one.
            known.may_begin_again("sent twice")
        else:
            self.book.publish(entry.task_id, entry.kind, entry.arguments, retries)

    # -- workers -----------------------------------------------------------------------------------------------------

    def start_worker(self, slots: int, queues: list[str], *, has_event_loop: bool) -> Worker:
        self._names += 1
        name = f"w{self._names}"
        worker = Worker(name, self.scene.app, slots, self._given, has_event_loop=has_event_loop)
        self.workers.append(worker)
        self.say("start", worker, "slots", slots, *queues)
        self.connect_broker(worker, queues)
        return worker

    def connect_broker(self, worker: Worker, queues: list[str]) -> None:
        self.say("broker", worker)
        worker.queues = list(queues)
        worker.consumed.update(queues)
        channel = self.broker.connect(worker, worker.pool.num_processes * worker.prefetch, queues)
        self.act(worker, worker.connect, channel, self.routes)

    def act(self, worker: Worker, what: Any, *args: Any) -> None:
        """A worker does something; it may be killed in the middle of it."""
        worker.begin_to_act()
        try:
            with HERE.acting(worker):
                what(*args)
                worker.tell_prefetch()
        except Killed:
            self.bury(worker)
        if HERE.errors:
            raise Violation(f"error in {worker}: {HERE.errors[0]}")
        self._check_overtaken()
        if not worker.dead and worker.quiet:
            worker.unsettled.clear()
            worker.over_here.clear()

    def _check_overtaken(self) -> None:
        """Once all that one reply brought has started."""
        started, self._started = self._started, []
        for attempt in started:
            waiting = {task_id for each in self.workers for task_id in each.wait_as_in_celery}
            here = len(self.workers)
            if found := overtaken(attempt, self.book, self.scene, self._used(), self.queue_of, waiting, here):
                raise Violation(f"overtaken: {found}")

    def kill(self, worker: Worker, after: int = 0) -> None:
        """SIGKILL, at once or at one of its next messages."""
        self.say("kill", worker, after)
        worker.doom = after
        if not after:
            worker.dead = True
            self.bury(worker)

    def bury(self, worker: Worker) -> None:
        """Collect the messages and runs of a killed worker."""
        self.say("killed", worker)
        unsettled = list(worker.unsettled)
        for run in unsettled:
            run.attempt.may_begin_again("its worker was killed before all had heard of its end")
            if not run.entry.kind.late:
                run.attempt.excuse("its worker was killed, and it is acknowledged early")
        worker.unsettled.clear()
        self._gone(worker)
        self._end_as_they_begin(worker, or_going_back=True)
        for job in worker.pool.jobs:
            self._die_with(job)
        for delivery in self._disconnect(worker):
            attempt = self._attempt(delivery.letter)
            runs = [run for run in attempt.runs if run.from_broker == delivery.tag]
            attempt.loose += not runs
            if any(run.outcome == "limited" and run.heard and run not in unsettled for run in runs):
                attempt.may_begin_again("its worker was killed before it could store the failure")

    def _gone(self, worker: Worker) -> None:
        worker.dead, worker.doom = True, -1
        self.workers.remove(worker)
        self.network.gone(worker)
        for task_id, number in worker.only_copies.intersection((*worker.parking, *worker.going_back)):
            self.book.attempt(task_id, number).excuse("its worker ended before it could store it again")
        # Celery acknowledged a revoked or failed task before the store got its end: as if the lock's ttl were over.
        self.unlock(worker.over_here)
        self._never_said(worker)

    def _disconnect(self, worker: Worker) -> list[Delivery]:
        """End its connection to the broker; return the messages that come back, at once or later."""
        if worker.channel is None:
            return []
        return self.broker.disconnect(worker.channel, self.rng.choice([0, self.clock.after(_VISIBILITY)]))

    def _never_said(self, worker: Worker) -> None:
        """The store took these out of their lines for a worker that is gone."""
        for task_id in worker.withdrawn:
            self.book.entries[task_id].excuse("its worker was gone before it said that it was revoked")

    def unlock(self, task_ids: Iterable[str]) -> None:
        """As an operator may."""
        for task_id in task_ids:
            entry = self.book.entries[task_id]
            kept = entry.kind.remember and self.book.succeeded.get(entry.identity)
            if entry.identity and not kept:
                self.operator.unlock(entry.kind.name, entry.arguments, task_id)

    def _die_with(self, job: Job) -> None:
        run = job.run
        if run is None or job.state == "heard":
            return
        run.attempt.may_begin_again("its worker was killed")
        if run.runs:
            self.book.end(run, "killed", self.clock.now_us)
        if not run.entry.kind.late or (run.outcome == "success" and run.entry.kind.remember):
            run.attempt.done = True

    def lose_broker(self, worker: Worker) -> None:
        """The connection to the broker ends."""
        self.say("lose broker", worker)
        back = self._disconnect(worker)
        self.act(worker, worker.disconnect)
        messages = [request_of(job).message for job in worker.pool.jobs]
        given = {message.delivery_tag for message in messages if message.channel is not None}
        for delivery in back:
            if delivery.tag in given:  # sent to a child, and will begin
                self._attempt(delivery.letter).may_begin_again("the broker connection was lost")
                delivery.letter.copies += 1
            else:
                self._comes_again(delivery, "the broker connection was lost")

    def deliver(self, channel: Channel, queue: str) -> None:
        """The oldest message of a queue arrives."""
        worker, message = channel.worker, self.broker.deliver(channel, queue, self.clock.now_us)
        task_id = message.headers["id"]
        self.say("deliver", worker, task_id, message.headers["retries"], message.delivery_info["routing_key"])
        self.book.arrived.setdefault(task_id)
        self.act(worker, worker.receive, message)

    def _comes_again(self, delivery: Delivery, why: str) -> None:
        attempt = self._attempt(delivery.letter)
        if any(run.from_broker == delivery.tag for run in attempt.runs):
            attempt.may_begin_again(why)
            delivery.letter.copies += 1
        else:
            attempt.loose += 1

    def _attempt(self, letter: Letter) -> Attempt:
        return self.book.attempt(*letter.name)

    def strike(self, delivery: Delivery) -> None:
        """The visibility timeout strikes: the message comes a second time, while its worker has it."""
        self.say("strike", delivery.letter.task_id)
        attempt = self._attempt(delivery.letter)
        attempt.may_begin_again("the visibility timeout was over")
        delivery.letter.copies += 1
        self.broker.strike(delivery)

    def acknowledged(self, delivery: Delivery) -> None:
        """The broker has one less."""
        letter, attempt = delivery.letter, self._attempt(delivery.letter)
        self.say("ack", delivery.channel.worker, *letter.name)
        began = any(run.from_broker == delivery.tag for run in attempt.runs)
        beside = any(
            run.attempt is attempt and not run.lapsed and not run.worker.knows_alone(run.from_broker)
            for run in self.book.running
        )
        if beside and not began:
            # It waits for the one that runs, and is needless when that comes to a proper end.
            attempt.spare += 1
            if letter.copies:
                letter.copies -= 1
                attempt.credit -= 1

    def finish(self, worker: Worker) -> None:
        """Its pool has stopped: it reports the rest."""
        self.say("finish", worker)
        self.act(worker, worker.finish)

    def leave(self, worker: Worker) -> None:
        """It has stopped: the broker connection ends, and its unacknowledged messages go back.

        Its reports to a store that has not answered in time are lost.
        """
        self.say("gone", worker)
        unheard = [] if worker.reported else worker.unsettled
        if unheard and worker.throttling._stopping._left > 0:  # it has not waited for as long as it may
            raise Violation(f"{worker} ends too early: {worker.inside()}")
        for run in unheard:
            run.attempt.may_begin_again("its worker stopped while the store was out of reach")
        self._gone(worker)
        for delivery in self._disconnect(worker):
            self._comes_again(delivery, "its worker stopped")

    def cold(self, worker: Worker) -> None:
        """SIGQUIT: the running tasks are given up."""
        self.say("cold shutdown", worker)
        self._end_as_they_begin(worker, or_going_back=False)
        self.act(worker, worker.close)
        for job in list(worker.pool.jobs) if not worker.dead else ():
            self._die_with(job)
            if job.accepted and job.state != "sent" and not worker.dead:
                self.act(worker, worker.job_says, job.cancel)
            job.state = "heard"
            if job in worker.pool.jobs:
                worker.pool.jobs.remove(job)

    def _end_as_they_begin(self, worker: Worker, *, or_going_back: bool) -> None:
        for task_id, number in worker.about_to_begin(or_going_back=or_going_back):
            self.book.attempt(task_id, number).excuse("its worker ended as it began, and it is acknowledged early")

    def change_queues(self, worker: Worker, queue: str) -> None:
        """Act on a remote control command: consume this queue, or no more."""
        if worker.channel is None:
            return
        add = queue not in worker.channel.queues
        self.say("add" if add else "cancel", queue, worker)
        self.act(worker, worker.consumer.add_task_queue if add else worker.consumer.cancel_task_queue, queue)
        if worker.dead or worker.channel is None:
            return
        worker.queues = list(worker.channel.queues)
        worker.consumed.update(worker.queues)

    def steer(self, limit: str, what: str) -> None:
        """Change a limit as an operator."""
        most = self.scene.permits[limit]
        if what == "override" and most is None:
            return
        if what == "rate":
            self._pace(limit)
            return
        number = self.rng.randint(1, 4)
        self.say(what, limit, number if what == "override" else "")
        if what == "pause":
            self.paused.setdefault(limit, self.clock.now_us)
        elif what == "resume":
            self.paused.pop(limit, None)
        self.operator.say(limit, what, *([number] if what == "override" else []))
        if what == "reset":
            self.caps.pace(limit, None, self.clock.now_us)
        if what in ("override", "reset") and most is not None:
            self.caps.say(limit, number if what == "override" else most, self.clock.now_us)

    def _pace(self, limit: str) -> None:
        """An operator changes a rate, also of a limit that has none."""
        count, burst = self.rng.randint(5, 40), self.rng.randint(1, 3)
        self.say("rate", limit, count, burst)
        self.caps.pace(limit, (count, burst), self.clock.now_us)
        self.operator.say(limit, "override", rate=f"{count}/s", burst=burst)

    # -- the pool ----------------------------------------------------------------------------------------------------

    def _given(self, job: Job) -> None:
        runs = job.worker.gate.running.runs
        job.permit = next((run.permit for run in runs if run.request is request_of(job)), None)
        job.granted_us = job.permit.granted_us if job.permit else self.clock.now_us
        if self.prompt and job.task != CONCLUDE and self.scene.kinds[job.task].ordered:
            self._started.append(self._attempt_of(job))
        self.book.given[job.task_id] = None

    def _used(self) -> dict[str, int]:
        """Permits that are taken, as the pools have it."""
        used: dict[str, int] = {}
        for job in (job for worker in self.workers for job in worker.pool.jobs):
            entry = self.book.entries[job.task_id]
            for bucket, cost in entry.kind.taken(entry.arguments):
                used[bucket] = used.get(bucket, 0) + cost
        return used

    def begin(self, job: Job) -> None:
        """A child begins the body."""
        job.state = "begun"
        if job.task == CONCLUDE:
            self._conclude(job)
            return
        worker, attempt = job.worker, self._attempt_of(job)
        kind, queue = attempt.kind, self.queue_of[job.task]
        safe = job.permit.safe_until_us if job.permit else self.clock.now_us + _LEASE_US
        run = job.run = Run(attempt, job, safe, kind.taken(attempt.entry.arguments, worker.name))
        message = request_of(job).message
        run.from_broker = message.delivery_tag if message.channel is not None else None
        self.say("begin", worker, attempt)
        if self.clock.now_us >= run.safe_until_us and kind.guarded:
            run.lapsed = True
            attempt.credit += 1
        if queue not in worker.consumed and kind.guarded:
            raise Violation(f"queue: {attempt} of {queue} begins on {worker}, which never consumed it")
        self.book.begin(run)
        check_begin(run, self.book, self.caps)
        check_pause(run, self.paused)

    def _attempt_of(self, job: Job) -> Attempt:
        return self.book.attempt(job.task_id, job.request["retries"] or 0)

    def _conclude(self, job: Job) -> None:
        """A duplicate is given the outcome of the first, which has to have one."""
        first, name, _ = job.request["args"]
        self.say("conclude", job.worker, job.task_id, "as", first)
        entry = self.book.entries[first]
        if name not in self.scene.kinds:
            raise Violation(f"{job.task_id} is given the outcome of {name}, which is no task")
        if not any(each.excuses or any(run.outcome for run in each.runs) for each in entry.attempts.values()):
            raise Violation(f"{job.task_id} is given the outcome of {first}, which has none")
        self._attempt_of(job).excuse("concluded")

    def accept(self, job: Job) -> None:
        """Report a start to the worker."""
        self.say("accept", job.worker, job.task_id)
        self.act(job.worker, job.worker.job_says, job.accept)

    def end(self, job: Job, outcome: str) -> None:
        """The body ends."""
        job.state, job.outcome = "ended", outcome
        run = job.run
        if run is None:
            return
        self.say("end", job.worker, run.attempt, outcome)
        self.book.end(run, outcome, self.clock.now_us)
        if outcome == "retry":
            self._publish_again(run)
            run.attempt.done = True  # its worker, if it sees it
        elif outcome == "success":
            store_told_of_success(self.scene.app, job.request)
            # Also if its worker will not say so since the pool forgot it.
            run.entry.remembered |= bool(run.entry.kind.remember)
            if run.entry.identity and not run.lapsed:
                self.book.succeeded.setdefault(run.entry.identity, []).append(run)

    def hear_end(self, job: Job) -> None:
        """Report an end to the worker."""
        job.state, worker, run = "heard", job.worker, job.run
        worker.pool.jobs.remove(job)
        if run is not None:
            self.say("heard", worker, run.attempt, run.outcome)
            self._counts(run)
            worker.unsettled.append(run)
        self.act(worker, worker.job_says, self._call_back, job)

    def _call_back(self, job: Job) -> None:
        if job.run is None or job.outcome == "success":
            job.on_success((0, None, 0.1))
        elif job.outcome == "lost":
            job.on_failure(einfo(_ERRORS["lost"]))
        else:
            job.on_success((1, einfo(_ERRORS[job.outcome]), 0.1))

    def _counts(self, run: Run) -> None:
        """Apply the consequences of the way in which a run ended."""
        run.heard = True
        attempt, outcome = run.attempt, run.outcome
        kind = attempt.kind
        again = outcome == "limited" and bool(kind.limits)
        again = again or (outcome == "requeue" and kind.late)
        again = again or (outcome == "lost" and kind.requeues)
        if again:
            attempt.may_begin_again(outcome)
        else:
            attempt.done = True
        if outcome in ("ignore", "reject", "lost", "requeue"):
            # A second delivery that waited for this one goes on, also one that a call parks which is still on its way.
            attempt.credit += attempt.spare + attempt.loose
            attempt.spare = attempt.loose = 0
            if run.from_broker is None:  # and so does one that the broker still has, of a task that was parked
                kept = [letter.name for letter in self.broker.all()]
                attempt.credit += kept.count(attempt.name)

    # -- the store ---------------------------------------------------------------------------------------------------

    def carry(self, pipe: Pipe) -> None:
        command = pipe.carry()
        self.say("carry", pipe.worker, name_of(command))

    def carry_stray(self, worker: Worker, command: bytes) -> None:
        """Deliver a call that was sent before its connection ended."""
        worker.answered(self.clock.now_us, command, self.network.carry_out(command))
        if worker not in self.workers:
            self._never_said(worker)

    def hear(self, pipe: Pipe, count: int) -> None:
        """Let a worker read so many replies."""
        worker = pipe.worker
        pipe.audible = min(count, len(pipe.replies))
        self.say("hear", worker, pipe.audible)
        self.act(worker, worker.hear, pipe)

    def carry_ask(self, ask: Ask) -> None:
        """A renewal is carried out."""
        self.say("renew", ask.worker, name_of(ask.command))
        ask.carry()
        if not isinstance(ask.reply, Exception):
            answers = answers_to(ask.command, ask.reply)
            for task_id, number in ask.worker.renewed(answers, self.clock.now_us + _LEASE_US):
                # Since its lease had ended, a copy may wait in line, which runs if this run ends without a result.
                self.book.attempt(task_id, number).may_begin_again("its lease had ended")
        for run in self._untold():
            if run.job.permit is not None:
                run.safe_until_us = max(run.safe_until_us, run.job.permit.safe_until_us)

    def pass_time(self, us: int) -> None:
        self.clock.now_us += us
        self.say("time", us)
        self.broker.show(self.clock.now_us)
        for run in self._untold():
            if run.safe_until_us <= self.clock.now_us:
                self.book.lapse(run, "its lease was lost")

    def _untold(self) -> list[Run]:
        """Runs of which the store does not know that they have ended."""
        ended = [job.run for worker in self.workers for job in worker.pool.jobs if job.state == "ended"]
        heard = [run for worker in self.workers for run in worker.unsettled]
        return self.book.running + [run for run in ended if run is not None] + heard

    def flush_data(self) -> None:
        """An operator empties the store, and no connection breaks."""
        self.say("flush all")
        heard = {
            each for pipe in self.network.pipes if pipe.replies for each in (*pipe.worker.parking, *pipe.worker.asking)
        }
        heard.update(each for worker in self.workers for each in worker.saving)
        self.network.flush_data()
        self._forgotten(heard)

    def lose_data(self) -> None:
        """The store comes back empty."""
        self.say("store lost its data")
        self.network.lose_data()
        self._forgotten(set())

    def _forgotten(self, answered: set[tuple[str, int]]) -> None:
        """The store has no data any more; of these its answer may be on the way, that it has them."""
        self.pass_time(1_000)  # a stamp is the time, or one more than the last: where time stands still it came twice
        self.book.succeeded.clear()
        self.book.starts.clear()
        self.caps.said.clear()
        self.caps.paces.clear()
        self.paused.clear()
        for worker in self.workers:
            for permit in worker.permits:
                permit.safe_until_us = 0
        for run in self._untold():
            self.book.lapse(run, "the store lost its data")
        kept = {letter.name for letter in self.broker.all()}
        for worker in self.workers:  # sent again to the empty store, unless it is killed
            worker.only_copies.update(set(worker.parking) - kept)
        kept.update(each for worker in self.workers for each in worker.parking)
        for attempt in self.book.all():
            if not attempt.done:
                if attempt.name not in kept or attempt.name in answered:
                    attempt.excuse("the store lost its data")
                attempt.may_begin_again("the store lost its data")
            elif attempt.name in kept:
                attempt.may_begin_again("the store forgot that it has run")

    def drop(self, task_id: str) -> None:
        """Drop it as an operator; the report of a worker excuses it."""
        self.say("drop", task_id, self.operator.drop(task_id))

    def drain(self, most: int) -> None:
        """Publish the oldest parked tasks again as an operator; no report of it has arrived yet."""
        nonce = f"drain:{self.step}"
        letters = self.operator.borrow(nonce, most)
        self.say("drain", *(each.task_id for each in letters))
        kept = {letter.name for letter in self.broker.all()}
        for each in letters:
            if each.name in kept:  # the worker that parked it could not acknowledge it
                self._attempt(each).may_begin_again("it was drained, and the broker had it, too")
            self._attempt(each).may_begin_again("it was drained")
            each.copies += 1
            self.broker.publish(each)
        if letters:
            self.drains.append((nonce, letters))

    def drained(self, *, dies: bool) -> None:
        """Report that the first of these are published, or that the operator has died."""
        nonce, letters = self.drains.pop(0)
        for each in letters if not dies else ():
            gone = self.operator.published(nonce, each.task_id)
            self.say("drained", each.task_id, gone)
            if gone and each.copies:
                each.copies -= 1
                self._attempt(each).credit -= 1

    def revoke(self, task_id: str) -> None:
        self.say("revoke", task_id)
        state.revoked.add(task_id)
        self.book.entries[task_id].excuse(REVOKED)
