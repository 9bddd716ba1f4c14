"""Change one stored value after the other, each in a healthy group, and go on as workers and readers do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

from redis import Redis

from celery_throttle.core.policy import costs_of
from celery_throttle.store.exchange_reply import Answer, Reply
from celery_throttle.store.scripts import execute
from tests.fuzz.mutations import Mutation, mutate
from tests.fuzz.readers import Readers, make_app, no_patience, what
from tests.fuzz.town import API, GPU, LEASE, LIMITS, Town, needs_for
from tests.store.caller import ended
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY

__all__ = ["Found", "fuzz"]

_ROUNDS, _TRIES = 40, 8
#: For how long the oldest task is kept for workers of its queue (s).
_OFFERED = 0.11
#: Tasks that are not started again here, or are withdrawn by the game.
_NOT_MISSED = {"deadline", "q2", "paused", "g4", "over"}


def _play(town: Town, readers: Readers, mutation: Mutation, seed: int) -> Iterator[str]:
    """Yield the errors."""
    before, random = town.tasks(), Random(seed)
    game = _Game(town, mutation)
    try:
        yield from readers.look(random)
        game.go_on()
        yield from readers.look(random)
        game.come_to_an_end()
        yield from game.stopped()
        yield from game.lost(before)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        yield what(error)


class _Game:
    """The moves of both workers, and the results of all tasks."""

    def __init__(self, town: Town, mutation: Mutation) -> None:
        self.town, self.mutation = town, mutation
        self.ended: set[str] = set()

    def go_on(self) -> None:
        """Both workers say one of everything."""
        for which, worker in enumerate(self.town.workers):
            held = self.town.held[which]
            worker.renew(*held.values())
            asked = [worker.arrival(f"new{which}{each.name}", needs_for(each)) for each in LIMITS]
            asked.append(worker.arrival(f"once{which}", needs_for(API), lock=plan_of("first").spec))
            again = [worker.arrival(task, needs_for(GPU)) for task in ("g2", "over", "g1")]
            reply = worker.exchange(asked=asked + again, began=[(task, run.nonce) for task, run in held.items()])
            self._hear(which, reply)
            refused = []
            for arrival, answer in zip(asked + again, reply.asked, strict=True):
                if answer == Answer.GRANTED or answer > max(Answer):
                    held[arrival.task] = arrival
                elif answer == Answer.MUST_PARK and arrival in asked:
                    parcel = worker.parcel(arrival.task, GPU, lock=arrival.lock)
                    refused.append(parcel._replace(needs=arrival.needs))
            never = [("first", "l2", "")]
            self._hear(which, worker.exchange(2, parked=refused, revoked=["deadline", "q2"], never=never))
            worker.again()
            worker.reap()
            worker.saved("kept", "g3")
        first, second = self.town.workers
        execute(self.town.client, first.store.claim("q9", plan_of("same").spec, 60.0, awaited=True))
        first.give_up("queued", "q1")
        second.locked("first")
        execute(self.town.client, first.store.succeeded("first", "l1", 1, 60.0, lost=True))

    def come_to_an_end(self) -> None:
        """Everything that runs ends, and the events that are due come."""
        quiet = 0
        for _ in range(_ROUNDS):
            self._let_time_pass()
            went = [self._end_all(which) for which in range(len(self.town.workers))]
            quiet = 0 if any(went) or self._lose_all() else quiet + 1
            if quiet == 2:  # the reaper has put things right in between
                break

    def stopped(self) -> Iterator[str]:
        """Yield the limits on which a new worker starts nothing."""
        for number, limit in enumerate(LIMITS):
            about = self.mutation.field.decode(errors="replace")
            if self.mutation.key in ("overrides", "limits") and limit.name in about:
                continue  # another number, or a pause, can be read
            fresh = LockCaller(self.town.client, f"w@h:1/{'cdef'[number] * 8}", f"12345678:z{number}", lease=LEASE)
            if not self._starts(fresh, needs_for(limit)):
                yield f"nothing starts on {limit.name} any more"

    def lost(self, before: set[str]) -> Iterator[str]:
        """Yield the lost tasks that were not set aside; the changed value may cost one."""
        if self.mutation.key in ("overrides", "limits"):
            return
        found: Any = self.town.client.hkeys(KEY["aside"])
        aside = {task.decode(errors="replace") for task in found}
        missed = before - self.ended - aside - _NOT_MISSED
        if len(missed) > 1:
            yield f"lost: {sorted(missed)}"

    def _starts(self, worker: LockCaller, needs: Any) -> bool:
        probe = f"probe {worker.queues[0]}"
        answer, run = worker.ask(probe, needs)
        if answer == Answer.GRANTED:
            worker.release(run)
            return True
        for _ in range(_TRIES):
            grants = worker.put(probe, needs, slots=1).grants
            for each in grants:
                worker.release(each)
            if any(each.task == probe for each in grants):
                return True
            self._let_time_pass()
            time.sleep(_OFFERED)  # to a queue without a consumer
            for which in range(len(self.town.workers)):  # tasks that were put in line again may be theirs
                self._end_all(which)
        return False

    def _end_all(self, which: int) -> bool:
        worker, held = self.town.workers[which], self.town.held[which]
        runs = list(held.values())
        held.clear()
        self.ended.update(run.task for run in runs)
        reply = worker.exchange(5, ended=[ended(run) for run in runs])
        self._hear(which, reply)
        return bool(runs or reply.grants)

    def _let_time_pass(self) -> None:
        due: Any = self.town.client.zrange(KEY["due"], 0, -1)
        for member in due:
            if member.startswith(b"lane:"):  # let go by a queue without a consumer: it has its turn by the clock
                continue
            self.town.client.zadd(KEY["due"], {member: 1})

    def _lose_all(self) -> bool:
        """End all leases without a holder; return whether there were any."""
        left: Any = self.town.client.zrange(KEY["leases"], 0, -1)
        for task in left:
            self.town.client.zadd(KEY["leases"], {task: 1})
        self.town.client.hset(KEY["meta"], "moment", "1")  # no more time to renew: that was it
        self.town.workers[0].reap()
        return bool(left)

    def _hear(self, which: int, reply: Reply) -> None:
        for grant in reply.grants:
            self.town.held[which][grant.task] = grant
            costs_of(grant.needs)


#: Seconds after which a town is made anew: its leases and locks end by the clock.
_YOUNG = 60.0


class Found(NamedTuple):
    """A change after which something went wrong."""

    seed: int
    mutation: Mutation
    wrong: list[str]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}: {self.mutation}", *self.wrong])


def fuzz(client: Redis, url: str, seeds: Iterable[int]) -> Iterator[Found | None]:
    """Yield for each seed its errors, None if there are none."""
    readers, town, made = Readers(make_app(url)), None, 0.0
    with no_patience():
        for seed in seeds:
            if town is None or time.monotonic() - made > _YOUNG:
                client.flushdb()
                town, made = Town(client), time.monotonic()
            town.restore()
            mutation = mutate(client, KEY, Random(seed))
            wrong = list(_play(town, readers, mutation, seed))
            yield Found(seed, mutation, wrong) if wrong else None
