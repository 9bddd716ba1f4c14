"""`Throttled`, the base class that users give their tasks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Task, states
from celery.result import EagerResult
from celery.utils.imports import symbol_by_name

from celery_throttle.clients import signed, store_client
from celery_throttle.core.reserved import ReservedStart
from celery_throttle.errors import ConfigurationError, WrongArguments
from celery_throttle.settings import settings_of, throttles
from celery_throttle.store.identity_locks import read_locked
from celery_throttle.tasks.awaiting import warn_if_not_awaited
from celery_throttle.tasks.fencing import token_of, token_or_none
from celery_throttle.tasks.install import free_locks, install
from celery_throttle.tasks.mixing import mix_in, names_of, remember_task
from celery_throttle.tasks.one_line import in_one_line
from celery_throttle.tasks.options import OPTIONS, check_attributes, misplaced, options_of, read_options, too_late
from celery_throttle.tasks.publications import with_publication
from celery_throttle.tasks.publish import HEADER, check_max_parked, is_again, publish
from celery_throttle.tasks.rate_limited import RateLimited
from celery_throttle.tasks.registry import (
    call_of,
    declare,
    dedup_of,
    group_of,
    is_bound,
    is_read,
    policies_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from typing_extensions import Self

    from celery_throttle.clients import StoreClient
    from celery_throttle.core.arguments import TaskCall
    from celery_throttle.core.dedup import Dedup, LockUntil, OnConflict
    from celery_throttle.core.limits import Limit, Part
    from celery_throttle.core.rates import Rate
    from celery_throttle.store.identity_locks import Locked

__all__ = ["Throttled", "unlock"]

logger = logging.getLogger(__name__)

#: By name, so that a producer does not import the worker's code.
_STRATEGY_OF_LATE = "celery_throttle.worker.celery_side.late_tasks:strategy_of_late"


class Throttled(Task):  # type: ignore[type-arg]  # generic only since Celery 5.7
    """Base class of tasks that are throttled over all workers::

        @app.task(base=Throttled, limit=5)
        def render(video_id): ...

        @app.task(base=Throttled, singleton=True, unique_on=["order_id"], remember=86400)
        def charge(order_id, amount): ...

    Such a task also has the app's own task class (Django's, Flask's, ``Celery(task_cls=...)``) as its last base.

    Attributes:
        limit: how many runs at once: a number for this task alone, a `Limit` to share it, a list of them (a run takes a
            permit of each, all or none), None for no limit.
        key: splits the task's own limit and rate, as in `Limit`: each value has its own permits and its own line; so do
            fair_by, weights, max_parked, per and share.
        rate: how many may start: "100/m", or several; alone or beside a limit. ``burst``: as in `Limit`.
        cost: how many permits and starts a run takes: a number, the name of an argument, or a function of them all.
        start_deadline: seconds (or a timedelta) that a call may wait for its permit before it expires, visibly.
        singleton: one call with the same arguments is pending or runs at a time; all options below need this one.
        unique_on: which arguments count: names, dotted paths (``["order.id"]``), or a function of the arguments; an
            empty list: none, one call of the task at a time. By default all count.
        lock_until: when the next call may come: after the first has ``"finished"`` (default) or ``"started"``;
            ``"expires"``: ``lock_ttl`` after the first was published.
        on_conflict: how ``apply_async`` treats a duplicate: ``"return_existing"`` (default) returns the
            `AsyncResult` of the first; ``"raise"`` raises `DuplicateTask`; ``"skip"`` returns a result that has ended
            as REVOKED ("skipped: ..."); ``"replace"`` revokes the first if it does not run; ``"keep_last"`` lets one
            run and one, the newest, wait.
        remember: seconds (or a timedelta) for which a success counts: a duplicate gets its outcome, and does not run.
        lock_ttl: seconds (or a timedelta) for which a task that was published, but is not running, keeps its lock, by
            default a day; longer than your longest backlog. A task with an ETA keeps the lock as long after its ETA.

    Raises:
        ConfigurationError: when the task is bound, for an option that cannot work.

    Warning:
        Only workers throttle. ``task()``, ``task.apply()`` and eager mode run at once. No lock can stop a task that was
        started and is cut off from the store for longer than its lease: where a second run would cost money, have the
        database refuse it by `fencing_token`.
    """

    abstract = True
    limit: ClassVar[int | Limit | Sequence[Limit] | None] = None
    key: ClassVar[Part | None] = None
    rate: ClassVar[str | Rate | Sequence[str | Rate] | None] = None
    burst: ClassVar[int | Sequence[int] | None] = None
    fair_by: ClassVar[Part | None] = None
    weights: ClassVar[Mapping[Any, int] | None] = None
    max_parked: ClassVar[int | None] = None
    per: ClassVar[str | None] = None
    share: ClassVar[float | None] = None
    cost: ClassVar[int | Part | None] = None
    start_deadline: ClassVar[float | timedelta | None] = None
    singleton: ClassVar[bool] = False
    unique_on: ClassVar[Sequence[str] | Callable[..., object] | None] = None
    lock_until: ClassVar[LockUntil | None] = None
    on_conflict: ClassVar[OnConflict | None] = None
    remember: ClassVar[float | timedelta | None] = None
    lock_ttl: ClassVar[float | timedelta | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the object of a task; add the app's own task class if ``@app.task`` has just made the task's class."""
        if cls is Throttled or ((args or kwargs) and cls.__init__ is object.__init__):
            options = ", ".join(f"{name}={value!r:.80}" for name, value in kwargs.items()) or "limit=5"
            raise ConfigurationError(f"{cls.__name__} is no decorator: write @app.task(base={cls.__name__}, {options})")
        app = vars(cls).get("app")
        if app is not None:
            mix_in(cls, app, Throttled)
        make: Any = super().__new__
        made: Self = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        remember_task(made)
        return made

    def __setattr__(self, name: str, value: object) -> None:
        """As Python's, but refuse an option that is set after the task was bound, and would do nothing."""
        # `__bound__` comes first: reading the app of an unbound task would bind the task to the current app.
        if name in OPTIONS and self.__bound__ and is_bound(self) and not self._runs():
            raise ConfigurationError(too_late(str(self.name), name, value))
        super().__setattr__(name, value)

    def _runs(self) -> bool:
        """Return whether the body of the task is running, which may set any attribute."""
        stack: Any = self.request_stack
        return stack is not None and stack.top is not None

    @classmethod
    def bind(cls, app: Any) -> Any:
        """As Celery's, but add the app's own task class to the task's bases first."""
        if names_of(cls, app):
            mix_in(cls, app, Throttled)
        return super().bind(app)

    @classmethod
    @in_one_line()
    def on_bound(cls, app: Any) -> None:
        """Check the options and make the app's workers throttle; Celery calls this at least twice a task.

        The options are read again only if they have changed.
        """
        options = options_of(cls)
        for name in names_of(cls, app):
            if is_read(app, name, cls, options):
                continue
            check_attributes(name, cls, Throttled)
            policy, dedup = read_options(name, cls, options)
            declare(app, name, cls, options, policy, dedup)
            warn_if_not_awaited(name, cls, app)
            if policy is not None or dedup is not None:
                install(app)
            else:
                free_locks(app)

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """As Celery's, but a worker that learns of a task while it runs, and cannot throttle it, fails its messages."""
        refusing = symbol_by_name(_STRATEGY_OF_LATE)(self, app, consumer)
        return super().start_strategy(app, consumer, **kwargs) if refusing is None else refusing

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *rest: Any,
        throttle: Any = None,
        **options: Any,
    ) -> Any:
        """As Celery's, with one option more.

        Args:
            args: positional arguments.
            kwargs: arguments by name.
            task_id: the id of this call.
            rest: as Celery's.
            throttle: options for this call of a singleton: ``{"unique_on": ..., "on_conflict": ...}``.
            options: as Celery's.

        Raises:
            DuplicateTask: another call has the lock, and ``on_conflict="raise"``.
            LimitExceeded: as many tasks wait for one of the task's limits as may (``max_parked``).
            ConfigurationError: ``throttle=`` cannot work, or the arguments cannot be compared.
            TypeError: these are not the task's arguments.
        """
        dedup = self._dedup()
        if dedup is None and throttle is not None:
            raise ConfigurationError(f"Task {self.name}: throttle= of a call needs singleton=True on the task")
        if not OPTIONS.isdisjoint(options):
            raise ConfigurationError(misplaced(str(self.name), options))
        if self.typing:
            _check_arguments(self, args, kwargs)
        if rest:
            options |= dict(zip(("producer", "link", "link_error", "shadow"), rest, strict=False))
        send = super().apply_async
        call = call_of(self, args, kwargs, options.get("headers"))
        options = self._with_values(call, options | {"task_id": task_id})
        if dedup is not None or self.name in policies_of(self.app):
            options = with_publication(options)
        if dedup is None or not throttles(self.app):
            check_max_parked(self, call, options)
            return send(args, kwargs, **options)

        def send_if_it_may_wait(options: dict[str, Any]) -> Any:
            # A duplicate has claimed no lock, and does not wait in line.
            if options["headers"][HEADER]["claim"] != "0":
                check_max_parked(self, call, options)
            return send(args, kwargs, **options)

        dedup = dedup.for_call(str(self.name), throttle)
        client = store_client(self.app, group_of(self))
        return publish(self, client, dedup, call, options, send_if_it_may_wait)

    def apply(
        self,
        args: Any = None,
        kwargs: Any = None,
        link: Any = None,
        link_error: Any = None,
        task_id: str | None = None,
        retries: int | None = None,
        throw: bool | None = None,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """As Celery's, at once and without a permit. A `RateLimited` of the body is a failure: there is no line."""
        result: Any = super().apply(args, kwargs, link, link_error, task_id, retries, throw, *rest, **options)
        error = result.result
        if result.state != states.IGNORED or not isinstance(error, RateLimited):
            return result
        if self.app.conf.task_eager_propagates if throw is None else throw:
            raise error
        return EagerResult(result.id, error, states.FAILURE, name=self.name)

    @property
    def fencing_token(self) -> int:
        """In the body of a singleton: a number that grows with every grant of its lock.

        Send the token to the resource, which has to refuse a token smaller than the largest that it has seen::

            UPDATE orders SET state = 'paid', fence = :fence WHERE id = :id AND fence < :fence

        In eager mode the token is a number that grows within the process.

        Source: Kleppmann, "How to do distributed locking" (2016).

        Raises:
            NoFencingToken: the run has no lock; the message has the reason and the fix.
        """
        return token_of(self)

    @property
    def fencing_token_or_none(self) -> int | None:
        """The fencing token, None where there is none. Not for a ``WHERE``: ``fence < NULL`` matches no row."""
        return token_or_none(self)

    def locked_by(self, *args: Any, **kwargs: Any) -> Locked | None:
        """Return the holder of the lock of a call with these arguments, None if the lock is free.

        Raises:
            ConfigurationError: the task is no singleton, or the arguments cannot be compared.
            StoreUnavailable: the store did not answer, or refused.
        """
        client, identity = self._lock(args, kwargs)
        if client is None:
            return None
        return read_locked(client.ask(client.store.locked(identity)))

    def unlock(self, *args: Any, **kwargs: Any) -> bool:
        """Delete the lock of a call with these arguments; return False if the lock was free.

        A running task that had the lock goes on, beside the next one, and has the smaller fencing token.

        Raises:
            ConfigurationError: the task is no singleton, or the arguments cannot be compared.
            StoreUnavailable: the store did not answer, or refused.
        """
        return unlock(self, args, kwargs)

    def _with_values(self, call: TaskCall, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with a header of the values that the call's limits need, so that they are read once."""
        policy = policies_of(self.app).get(str(self.name))
        start = options.get("eta")
        reserved = policy is not None and policy.paced and isinstance(start, ReservedStart) and start.bucket
        if policy is None or not (policy.varies or reserved):
            return options
        # Also for an eager task, so that a test with it fails for a key that does not fit.
        if not self.app.conf.task_always_eager and not settings_of(self.app).enabled:
            return options
        headers = options.get("headers") or {}
        # A retry has the header of the task that runs here.
        if is_again(options) and policy.carried(headers.get(HEADER)) is not None:
            return options
        values = policy.values(call)
        if reserved:
            values["reserved"] = reserved
        return options | {"headers": {**headers, HEADER: values}}

    def _dedup(self) -> Dedup | None:
        if not is_bound(self):
            # Celery shows a task to other threads a moment before it binds it.
            self.on_bound(self.app)
        return dedup_of(self)

    def _lock(self, args: Any, kwargs: Any) -> tuple[StoreClient | None, str]:
        """Return the store client of a call's lock (None if throttling is turned off), and the lock's identity."""
        dedup = self._dedup()
        if dedup is None:
            raise ConfigurationError(f"Task {self.name}: it has no lock, since it has no singleton=True")
        call = call_of(self, args, kwargs)
        if call.bound is None:
            raise WrongArguments(f"Task {self.name}: these are not its arguments: {call.why_not()}")
        client = store_client(self.app, group_of(self)) if throttles(self.app) else None
        return client, dedup.plan(call).identity


def unlock(task: Throttled, args: Any, kwargs: Any, *, by: str | None = None, why: str = "") -> bool:
    """As `Throttled.unlock`, with an operator's name (None: ``user@host``) and reason, which the store keeps."""
    client, identity = task._lock(args, kwargs)  # noqa: SLF001 - in its own file
    if client is None:
        return False
    by, why = signed(by, why)
    return bool(client.ask(client.store.unlock(identity, name=str(task.name), by=by, why=why)))


def _check_arguments(task: Any, args: Any, kwargs: Any) -> None:
    """Raise the `TypeError` that Celery raises, before the arguments are used."""
    check: Any = getattr(task, "__header__", None)
    if check is not None:
        check(*(args or ()), **(kwargs or {}))
