"""The tasks of the simulated world, their limits, and their publishing: the code of a user of the library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from celery import Celery
from celery.backends.base import DisabledBackend
from celery.exceptions import BackendStoreError

from celery_throttle import Limit, Throttled
from celery_throttle.tasks.ours import CONCLUDE

__all__ = [
    "CONCLUDE",
    "EXPIRES_MS",
    "KEPT",
    "LEASE",
    "PREFIX",
    "Kind",
    "Results",
    "ResultsAway",
    "Scene",
    "make_app",
    "make_scene",
]

LEASE = 3.0
#: How long after it came to a worker a message of this world expires, and its time for Celery, which never comes.
EXPIRES_MS, _EXPIRES = 1500, datetime(2100, 1, 1, tzinfo=timezone.utc)
#: In the environment: the broker keeps parked messages until a replica has them.
KEPT = "SIMULATION_KEPT"
PREFIX = "sim"
HEADER = "throttle"


class ResultsAway(BackendStoreError):
    """The result backend is out of reach."""


class Results(DisabledBackend):
    """Receives Celery's results of tasks that did not run."""

    app: Any

    def mark_as_failure(self, task_id: str, exc: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.app.told(task_id, type(exc).__name__)

    def mark_as_revoked(self, task_id: str, reason: str = "", *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.app.told(task_id, f"revoked: {reason}")

    def store_result(self, task_id: str, result: Any, state: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        self.app.told(task_id, state)


class App(Celery):
    """Publishes to the world's broker."""

    told: Callable[[str, str], None]
    send: Callable[[dict[str, Any], str, str], None]
    ids: Callable[[], str]
    revoke: Callable[[str], None]

    @property
    def control(self) -> Any:
        """Send a command to the workers that can receive it."""
        return SimpleNamespace(revoke=self.revoke)

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        task_id = options.get("task_id") or self.ids()
        expires = self.tasks[name].expires
        message = self.amqp.as_task_v2(
            task_id, name, args, kwargs, retries=options.get("retries") or 0, expires=expires
        )
        headers = message.headers | (options.get("headers") or {})
        self.send(headers, json.dumps(message.body), options["queue"])
        return options["result_cls"](task_id)


class Kind(NamedTuple):
    """One task.

    Attributes:
        cost: how many permits of each limit a call needs.
        late: whether it is acknowledged after it ran.
        identity: the argument that makes calls the same, "" if it is no singleton.
        remember: seconds for which its success counts.
        requeues: whether its message goes back when its child is lost.
        newest: whether its newest call replaces the parked ones, and none is a duplicate.
        ordered: whether its calls start in the order in which they arrived.
    """

    name: str
    limits: tuple[Limit, ...] = ()
    cost: int = 1
    late: bool = False
    identity: str = ""
    remember: float = 0.0
    requeues: bool = False
    newest: bool = False
    ordered: bool = True

    @property
    def guarded(self) -> bool:
        return bool(self.limits or self.identity)

    def identity_of(self, arguments: Mapping[str, Any]) -> str:
        """Return the identity of a call, "" if it is no singleton."""
        return f"{self.name}:{arguments[self.identity]}" if self.identity else ""

    def taken(self, arguments: Mapping[str, Any], worker: str = "") -> tuple[tuple[str, int], ...]:
        """Return which buckets a call takes from on a worker, and how much."""
        values = {**arguments, "worker": worker}
        keys = [(limit.name, str(limit.per or limit.key or "")) for limit in self.limits]
        return tuple((f"{name}[{values[key]}]" if key else name, self.cost) for name, key in keys)


class Scene:
    """An app with its tasks.

    Attributes:
        permits: of each limit; None for one with a rate only.
        starts: of each limit with a rate, or of each key of it: so many in a second, and the burst.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.permits: dict[str, int | None] = {}
        self.starts: dict[str, tuple[int, int]] = {}
        self.kinds: dict[str, Kind] = {}

    def add(self, kind: Kind, **options: Any) -> None:
        if kind.guarded:
            options["base"] = Throttled
        if kind.limits:
            options |= {"limit": list(kind.limits), "cost": kind.cost}
        if kind.identity:
            options |= {"singleton": True, "unique_on": [kind.identity], "remember": kind.remember or None}

        def body(*, key: int = 0, n: int = 0) -> None:
            """Nothing: the world decides when it ends, and how."""

        late = {"acks_late": kind.late, "reject_on_worker_lost": kind.requeues}
        self.app.task(name=kind.name, shared=False, **late, **options)(body)
        self.kinds[kind.name] = kind
        for limit in kind.limits:
            self.permits[limit.name] = limit.permits
            for rate, burst in limit.rates:
                self.starts[limit.name] = rate.count, burst

    def publish(self, name: str, arguments: Mapping[str, Any], queue: str, **options: Any) -> Any:
        """As a user does."""
        return self.app.tasks[name].apply_async((), dict(arguments), queue=queue, **options)


def make_app(**settings: Any) -> App:
    """Return an app without tasks."""
    app = App("sim", broker="memory://", backend="tests.simulation.scene:Results", set_as_current=False)
    app.conf.update(
        throttle_url="redis://127.0.0.1:1/0", throttle_lease=LEASE, throttle_prefix=PREFIX, task_send_sent_event=False,
        worker_send_task_events=False, **settings,
    )  # fmt: skip
    return app


def make_scene(rng: Random, *, fails: bool = False) -> Scene:
    """Return one of many apps; with ``fails`` its tasks fail while the store is away."""
    app = make_app(throttle_on_store_error="fail" if fails else "hold")
    if KEPT in os.environ:
        app.conf.throttle_park_durability = "replicas"
    own, shared = Limit("own", rng.randint(1, 3)), Limit("shared", rng.randint(1, 3))
    tenant = Limit("tenant", rng.randint(1, 2), key="key")
    big, one, crowd = Limit("big", 3), Limit("one", 1), Limit("crowd", 1, max_parked=2)
    sited = Limit("sited", 1, per="worker")
    rate, burst = f"{rng.choice([2, 5, 10])}/s", rng.randint(1, 2)
    mail, pages = Limit("mail", rate=rate, burst=1, key="key"), Limit("pages", rate="10/s", burst=burst)
    late, both = Limit("late", rng.randint(1, 2)), Limit("both", rng.randint(1, 3), rate=rate, burst=burst)
    turns = Limit("turns", rng.randint(1, 2), fair_by="key", weights={1: 2})
    scene = Scene(app)
    scene.add(Kind("plain", ordered=False))
    scene.add(Kind("own", (own,)))
    scene.add(Kind("late", (late,), late=True))
    scene.add(Kind("a", (shared,)))
    scene.add(Kind("b", (shared,), late=True, requeues=True))
    scene.add(Kind("two", (shared, tenant), late=True))
    scene.add(Kind("keyed", (tenant,)))
    scene.add(Kind("costly", (big,), cost=2, late=True))
    scene.add(Kind("cheap", (big,)))
    scene.add(Kind("paced", (Limit("paced", rate=rate, burst=burst),), late=True))
    scene.add(Kind("mail", (mail,)))
    scene.add(Kind("both", (both,)))
    scene.add(Kind("pages", (pages,), cost=3, late=True))
    scene.add(Kind("crawl", (shared, pages, mail), late=True, ordered=False))
    scene.add(Kind("turns", (turns,), late=True, ordered=False))
    # A message that is given up leaves the order to later ones.
    soon = Limit("soon", 1)
    scene.add(Kind("soon", (soon,), ordered=False), start_deadline=1.5)
    scene.add(Kind("expires", (soon,), late=True, ordered=False), expires=_EXPIRES)
    scene.add(Kind("crowd", (crowd,), late=True, ordered=False))
    scene.add(Kind("sited", (sited,), ordered=False))
    scene.add(Kind("beside", (sited, shared), late=True, ordered=False))
    scene.add(Kind("once", identity="n", late=True))
    scene.add(Kind("once_early", (one,), identity="n"))
    # Of those that wait the newest runs; "last" while another one runs, too.
    scene.add(Kind("last", (own,), identity="n", late=True, newest=True), on_conflict="keep_last")
    scene.add(Kind("last_early", (one,), identity="n", newest=True), on_conflict="keep_last")
    scene.add(Kind("newer", (one,), identity="n", late=True), on_conflict="replace")
    scene.add(Kind("kept", identity="n", late=True, remember=3600.0))
    scene.add(Kind("kept_early", (own,), identity="n", remember=3600.0))
    app.finalize()
    return scene
