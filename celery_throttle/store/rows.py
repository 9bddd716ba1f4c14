"""How limits stand, who holds and who waits: values with names, of which `str` makes one line to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.policy import costs_of
from celery_throttle.core.rates import Rate
from celery_throttle.core.wording import at, counted, end_of, listed, one_line, seconds, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from celery_throttle.store.last_hour import LastHour

__all__ = [
    "Change",
    "Drained",
    "Holder",
    "LimitStatus",
    "LockStatus",
    "Need",
    "Parked",
    "RateStatus",
    "Said",
    "SetAside",
    "Wrong",
    "needs_from",
    "rates_text",
]


@dataclass(frozen=True)
class RateStatus:
    """A rate: ``rate`` as text (``"100/m"``), and its ``burst``."""

    rate: str
    burst: int

    @property
    def per_second(self) -> float:
        """Starts a second that it allows in the long run."""
        rate = Rate.parse(self.rate)
        return rate.count / rate.period * 1e6

    def __str__(self) -> str:
        return f"{self.rate} (burst {self.burst})" if self.burst > 1 else self.rate


@dataclass(frozen=True)
class Said:
    """What somebody said of a limit at run time.

    Attributes:
        limit: of which one: its name, or ``name[key]`` if it was said of one key.
        by: who.
        why: in their words.
        since: when, by the store's clock.
        until: when it ends by itself, None if it does not.
        permits: of an override of the permits; of everything else None.
        rates: of an override of the rates; of everything else none.
    """

    limit: str
    by: str
    why: str
    since: datetime
    until: datetime | None
    permits: int | None = None
    rates: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        by = f"by {one_line(self.by)}" if self.by else ""
        number = "" if self.permits is None else str(self.permits)
        why = f"({one_line(self.why)})" if self.why else ""
        until = f"until {end_of(self.since, self.until)}" if self.until else ""
        return " ".join(filter(None, [number, rates_text(self.rates), by, until, why]))


@dataclass(frozen=True)
class LimitStatus:
    """How a limit stands, or one key of it.

    Attributes:
        name: of the limit.
        key: the value of its key; None for the limit itself, and for what all its keys have in common.
        permits: what the code declares; None: any number (a rate alone), or not declared in this store yet.
        rates: what the code declares.
        max_parked: how many may wait, None: any number.
        declared: whether a worker has declared it in this store.
        in_force: how many may run now, after overrides and ``disable``; None: any number.
        override: another number of permits for now, if there is one.
        paused: nothing starts, if that was said.
        disabled: nothing of it is enforced, if that was said.
        held_back: nothing starts because the outside said that it is asked too often, if it did.
        held: permits held now; those of lost workers count until their lease ends.
        parked: how many tasks wait that need permits of it; one that needs several limits is counted by each.
        next_start_in: seconds until its rates allow the next start.
        barred_by: the task that goes before all newer ones, if one that needs several limits waited for long.
        last_hour: what started on it in the last hour, with all its keys; None: nothing did, nobody asked, or it is a
            key.
        rate_override: other rates for now, if there are any.
        keys: of a limit: how many of its keys have holders or parked tasks.
        held_of_keys: permits held on these keys together.
        parked_of_keys: tasks parked on these keys together.
    """

    name: str
    key: str | None
    permits: int | None
    rates: tuple[RateStatus, ...]
    max_parked: int | None
    declared: bool
    in_force: int | None
    override: Said | None
    paused: Said | None
    disabled: Said | None
    held_back: Said | None
    held: int
    parked: int
    next_start_in: float
    barred_by: str | None
    bar_ticket: float = field(default=0, repr=False)
    last_hour: LastHour | None = None
    rate_override: Said | None = None
    keys: int = 0
    held_of_keys: int = 0
    parked_of_keys: int = 0

    def __str__(self) -> str:
        return ", ".join(self._facts())

    def _facts(self) -> Iterator[str]:
        yield f"{self.bucket} {self.held}" + (f"/{self.permits}" if self.permits is not None else "")
        if not self.declared:
            yield "not declared"
        if self.parked:
            yield f"{self.parked} wait" + (f" ({self.max_parked} may)" if self.max_parked else "")
        if self.keys:
            yield f"{counted(self.keys, 'key')}: {self.held_of_keys} held, {self.parked_of_keys} wait"
        yield from (f"rate {rate}" for rate in self.rates)
        if self.next_start_in > 0:
            yield f"next start in {seconds(self.next_start_in)}"
        for what, said in (
            ("override", self.override),
            ("rate override", self.rate_override),
            ("paused", self.paused),
            ("disabled", self.disabled),
            ("held back", self.held_back),
        ):
            if said:
                yield f"{what} {said}".rstrip()
        if self.barred_by:
            yield f"task {self.barred_by} goes first"

    @property
    def bucket(self) -> Bucket:
        """The limit, or the key of it; as text ``tenant[acme]``."""
        return Bucket(self.name, self.key)

    @property
    def held_in_all(self) -> int:
        """Permits held, with those of all its keys."""
        return self.held + self.held_of_keys

    @property
    def parked_in_all(self) -> int:
        """Tasks parked, with those of all its keys."""
        return self.parked + self.parked_of_keys

    @property
    def rates_in_force(self) -> tuple[RateStatus, ...]:
        """The rates that hold now, after an override and ``disable``; none: it has no rate."""
        if self.disabled:
            return ()
        return self.rate_override.rates if self.rate_override else self.rates

    @property
    def overrides(self) -> tuple[Said, ...]:
        """The overrides, of permits and of rates, if there are any."""
        return tuple(each for each in (self.override, self.rate_override) if each)

    @property
    def stopped(self) -> bool:
        """Whether nothing may start."""
        return self.paused is not None or self.held_back is not None

    @property
    def full(self) -> bool:
        """Whether as many run as may."""
        return not self.has_room(1)

    def has_room(self, cost: int) -> bool:
        """Whether so many permits are free; a task that takes more than there are runs alone."""
        return self.in_force is None or self.held + min(cost, max(self.in_force, 1)) <= self.in_force

    def bars(self, task_id: str, ticket: float) -> bool:
        """Whether an older task that needs several limits goes before this one."""
        return self.barred_by not in (None, task_id) and ticket > self.bar_ticket and not self.disabled

    def scope(self, said: Said) -> Bucket:
        """Of what that was said: of the limit with all its keys, or of one key."""
        whole = Bucket(self.name)
        return whole if said.limit == str(whole) else self.bucket


@dataclass(frozen=True)
class Need:
    """So many permits of a limit, or of one key of it."""

    limit: str
    key: str | None
    permits: int

    def __str__(self) -> str:
        return f"{counted(self.permits, 'permit')} of {self.bucket}"

    @property
    def bucket(self) -> Bucket:
        """The limit, or the key of it; as text ``tenant[acme]``."""
        return Bucket(self.limit, self.key)


def needs_from(text: str) -> tuple[Need, ...]:
    """Read the permits that a task takes, as the store writes them."""
    return tuple(Need(bucket.name, bucket.key, permits) for bucket, permits in costs_of(text))


@dataclass(frozen=True)
class Holder:
    """A task that runs, or is about to.

    Attributes:
        task_id: of the task.
        needs: the permits it holds; none for one that only has an identity lock.
        worker: its worker in this store: node, process id and a part of its own, as in ``celery@web1/4242/1f3a9c2e``.
        lease_left: seconds until its permits can be reclaimed unless its worker renews them; negative: overdue.
        queue: the queue it came from, None if that is not known.
        deliveries: how often it was started before, by workers that were lost.
        since: when it got its permits.
        task_name: None if it is not one of the tasks of whoever looks.
        broker: the code of its queue's broker, as `doctor` lists it; "" if that is not known.
    """

    task_id: str
    needs: tuple[Need, ...]
    worker: str
    lease_left: float
    queue: str | None
    deliveries: int
    since: datetime
    task_name: str | None = None
    broker: str = ""

    def __str__(self) -> str:
        holds = " and ".join(map(str, self.needs)) or "no permit"
        left = self.lease_left
        lease = f"ends in {seconds(left)}" if left >= 0 else f"ended {seconds(-left)} ago"
        queue = f", queue {one_line(self.queue)}" if self.queue else ""
        task = f"{one_line(self.task_name)}[{one_line(self.task_id)}]" if self.task_name else one_line(self.task_id)
        return (
            f"{task} holds {holds} since {at(self.since)}, worker {self.worker}, lease {lease}"
            f"{queue}{_before(self.deliveries)}"
        )


@dataclass(frozen=True)
class Parked:
    """A task that waits.

    Attributes:
        task_id: of the task.
        task_name: None if its message does not say, or is very large.
        limit: in whose line it is; None if it waits for its identity lock, or only for a slot to be told something.
        key: the value of the limit's key, if it has one.
        queue: the queue whose workers can start it; that of a permit outside of tasks begins with ``~``.
        place: in its line, 1 for the first.
        deliveries: how often it was started before, by workers that were lost.
        since: when it came to a worker, or back in line; None if its record is not readable.
        broker: the code of its queue's broker, as `doctor` lists it; "" if that is not known.
    """

    task_id: str
    task_name: str | None
    limit: str | None
    key: str | None
    queue: str
    place: int
    deliveries: int
    since: datetime | None = None
    broker: str = ""

    def __str__(self) -> str:
        line = (
            f"place {self.place} in the line of {Bucket(self.limit, self.key)}" if self.limit else "in no limit's line"
        )
        task = f"{one_line(self.task_name or 'Task')}[{one_line(self.task_id)}]"
        queue = f", queue {one_line(self.queue)}" if self.queue else ""
        return f"{task}: {line}{queue}{_before(self.deliveries)}"


@dataclass(frozen=True)
class Change:
    """What somebody changed at run time.

    Attributes:
        at: when, by the store's clock.
        action: ``override``, ``reset``, ``pause``, ``resume``, ``disable``, ``enable``, ``release-hold``,
            ``drop``, ``drain`` or ``unlock``.
        by: who.
        why: in their words.
        limit: which was changed, None if it was no limit.
        key: the value of its key, None for the limit itself.
        before: what was said of it until then, None if that was nothing.
        after: what is said of it from then on, None if that is nothing.
        permits_before: in force until then; None: any number, or it was no limit.
        permits_after: in force from then on; None as above.
        task_id: of ``unlock``: who had the lock; of ``drop``: which, if only one was meant.
        task_name: of ``unlock``.
        tasks: how many were dropped, or drained.
        rates_before: in force until then.
        rates_after: in force from then on.
    """

    at: datetime
    action: str
    by: str
    why: str
    limit: str | None = None
    key: str | None = None
    before: Said | None = None
    after: Said | None = None
    permits_before: int | None = None
    permits_after: int | None = None
    task_id: str | None = None
    task_name: str | None = None
    tasks: int = 0
    rates_before: tuple[RateStatus, ...] = ()
    rates_after: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        why = f" ({one_line(self.why)})" if self.why else ""
        return f"{at(self.at)} {one_line(self.by) or 'somebody'}: {self.what}{why}"

    @property
    def what(self) -> str:
        """What was done to what, in words."""
        return ", ".join(self._facts())

    def _facts(self) -> Iterator[str]:
        yield f"{self.action} {self._about()}".rstrip()
        if self.tasks and self.task_id is None:
            yield counted(self.tasks, "task")
        if self.permits_before != self.permits_after:
            yield f"{_in_force(self.permits_before)} -> {_in_force(self.permits_after)} permits"
        if self.rates_before != self.rates_after:
            yield f"rate {rates_text(self.rates_before) or 'none'} -> {rates_text(self.rates_after) or 'none'}"
        if self.after and self.after.until:
            yield f"until {end_of(self.at, self.after.until)}"

    def _about(self) -> str:
        if self.task_id is not None:
            return f"{one_line(self.task_name or 'task')}[{one_line(self.task_id)}]"
        return "" if self.limit is None else str(Bucket(self.limit, self.key))


@dataclass(frozen=True)
class Drained:
    """What became of the parked tasks of a queue.

    Attributes:
        queue: its name.
        tasks: how many are in it again, or would be.
        left: how many are parked still, or again: duplicates that wait for their first, those that have only to be told
            that they do not run, messages that are not readable; and what workers have parked meanwhile.
        elsewhere: how many are parked of a queue of this name at another broker: they stay parked.
    """

    queue: str
    tasks: int
    left: int
    elsewhere: int = 0

    def __str__(self) -> str:
        left = f", {self.left} left" if self.left else ""
        elsewhere = f", {self.elsewhere} of another broker" if self.elsewhere else ""
        return f"{one_line(self.queue)}: {counted(self.tasks, 'task')}{left}{elsewhere}"


@dataclass(frozen=True)
class LockStatus:
    """An identity lock that a task has.

    Attributes:
        identity: of the call: a hash of the task's name and arguments.
        task_id: of the task that has it.
        task_name: None if that is not known: the store has no message of the task.
        state: ``queued`` (published, or parked), ``running``, ``done`` or ``failed`` (remembered).
        since: when it came into that state, but for ``done`` and ``failed``: when it started; by the store's clock.
        expires_in: seconds until the lock ends by itself; a running task renews it.
        fencing_token: of the last grant, 0 before the first.
        worker: where it runs, as in `Holder`; None if it does not.
        next_id: the task that runs next (``on_conflict="keep_last"``), None if there is none.
    """

    identity: str
    task_id: str
    task_name: str | None
    state: str
    since: datetime
    expires_in: float
    fencing_token: int
    worker: str | None
    next_id: str | None

    def __str__(self) -> str:
        where = f" on worker {self.worker}" if self.worker else ""
        following = f", next {one_line(self.next_id)}" if self.next_id else ""
        task = f"{one_line(self.task_name or 'Task')}[{one_line(self.task_id)}]"
        return (
            f"{task} has lock {self.identity}, {self.state}{where} since {at(self.since)}, it ends in "
            f"{seconds(self.expires_in)}{following}"
        )


@dataclass(frozen=True)
class SetAside:
    """What could not be read: the record of a task, whose line went on without it, or a field of another key.

    Attributes:
        task_id: of the task; "" for a field of another key, which was dropped.
        why: what is wrong with it.
        since: when it was found.
        record: as it was.
        key: the name of the key that had it, as ``limits`` or ``said``.
        field: of that key: the task's id, or that of a limit, a worker, an identity lock, ...
    """

    task_id: str
    why: str
    since: datetime
    record: str
    key: str = "records"
    field: str = ""

    def __str__(self) -> str:
        if not self.task_id:
            return f"{self.key}[{one_line(self.field)}]: dropped since {at(self.since)}, it was {one_line(self.why)}"
        return f"{one_line(self.task_id)}: set aside since {at(self.since)}, its record is {one_line(self.why)}"


def rates_text(rates: Iterable[RateStatus]) -> str:
    """Return rates with their bursts: ``10/s and 5000/h (burst 500)``; "" for none."""
    return listed([str(each) for each in rates])


def _in_force(permits: int | None) -> str:
    return "any number of" if permits is None else str(permits)


def _before(deliveries: int) -> str:
    return f", started {times(deliveries)} before" if deliveries else ""


@dataclass(frozen=True)
class Wrong:
    """A field of the store that cannot be read, or does not agree with the records.

    Attributes:
        key: the name of the key that has it, as ``limits`` or ``records``.
        field: of that key: the id of a task, or the name of a limit, a worker, an identity lock, ...
        why: what is wrong with it.
    """

    key: str
    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.key}[{one_line(self.field)}]: {one_line(self.why)}"
