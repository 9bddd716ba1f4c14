"""The tasks of the simulated world, their limits, and their publishing: the code of a user of the library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    send: Callable[[str, str, int, Mapping[str, Any], str, str], None]
    ids: Callable[[], str]
    revoke: Callable[[str], None]

    @property
    def control(self) -> Any:
        """Send a command to the workers that can receive it."""
        return SimpleNamespace(revoke=self.revoke)

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:  # type: ignore[override]
        task_id, retries = options.get("task_id") or self.ids(), options.get("retries") or 0
        message = self.amqp.as_task_v2(task_id, name, args, kwargs, retries=retries)
        headers = message.headers | (options.get("headers") or {})
        self.send(task_id, name, retries, headers, json.dumps(message.body), options["queue"])
        return options["result_cls"](task_id)


class Kind(NamedTuple):
    """One task.

    Attributes:
        buckets: the permits of a call: limit, name of the argument that splits it ("" for none), permits.
        late: whether it is acknowledged after it ran.
        identity: the argument that makes calls the same, "" if it is no singleton.
        remember: seconds for which its success counts.
        requeues: whether its message goes back when its child is lost.
        newest: whether its newest call replaces the parked ones, and none is a duplicate.
        ordered: whether its calls start in the order in which they arrived.
    """

    name: str
    buckets: tuple[tuple[str, str, int], ...] = ()
    late: bool = False
    identity: str = ""
    remember: float = 0.0
    requeues: bool = False
    newest: bool = False
    ordered: bool = True

    @property
    def guarded(self) -> bool:
        return bool(self.buckets or self.identity)

    def taken(self, arguments: Mapping[str, Any], worker: str = "") -> tuple[tuple[str, int], ...]:
        """Return which buckets a call takes from on a worker, and how much; the key "worker" is the worker itself."""
        values = {**arguments, "worker": worker}
        return tuple((f"{name}[{values[key]}]" if key else name, cost) for name, key, cost in self.buckets)


@dataclass
class Scene:
    """An app with its tasks.

    Attributes:
        permits: of each limit; None for one with a rate only.
        starts: of each limit with a rate, or of each key of it: so many in a second, and the burst.
    """

    app: Any
    permits: dict[str, int | None]
    starts: dict[str, tuple[int, int]]
    kinds: dict[str, Kind] = field(default_factory=dict)

    def add(self, kind: Kind, **options: Any) -> None:
        if kind.guarded:
            options["base"] = Throttled
        if kind.identity:
            options |= {"singleton": True, "unique_on": [kind.identity], "remember": kind.remember or None}

        def body(*, key: int = 0, n: int = 0) -> None:
            """Nothing: the world decides when it ends, and how."""

        late = {"acks_late": kind.late, "reject_on_worker_lost": kind.requeues}
        self.app.task(name=kind.name, shared=False, **late, **options)(body)
        self.kinds[kind.name] = kind

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
    own, shared, tenant = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 2)
    count, burst = rng.choice([2, 5, 10]), rng.randint(1, 2)
    permits = {"own": own, "shared": shared, "tenant": tenant, "big": 3, "late": rng.randint(1, 2), "crowd": 1}
    permits |= {"one": 1, "both": rng.randint(1, 3), "turns": rng.randint(1, 2), "soon": 1, "sited": 1}
    paced = {"paced": (count, burst), "mail": (count, 1), "both": (count, burst), "pages": (10, burst)}
    scene = Scene(app, {**dict.fromkeys(paced), **permits}, paced)
    both = Limit("shared", shared)
    scene.add(Kind("plain", ordered=False))
    scene.add(Kind("own", (("own", "", 1),)), limit=Limit("own", own))
    scene.add(Kind("late", (("late", "", 1),), late=True), limit=Limit("late", permits["late"]))
    scene.add(Kind("a", (("shared", "", 1),)), limit=both)
    scene.add(Kind("b", (("shared", "", 1),), late=True, requeues=True), limit=both)
    several = [both, Limit("tenant", tenant, key="key")]
    scene.add(Kind("two", (("shared", "", 1), ("tenant", "key", 1)), late=True), limit=several)
    scene.add(Kind("keyed", (("tenant", "key", 1),)), limit=Limit("tenant", tenant, key="key"))
    scene.add(Kind("costly", (("big", "", 2),), late=True), limit=Limit("big", 3), cost=2)
    scene.add(Kind("cheap", (("big", "", 1),)), limit=Limit("big", 3))
    scene.add(Kind("paced", (("paced", "", 1),), late=True), limit=Limit("paced", rate=f"{count}/s", burst=burst))
    mail = Limit("mail", rate=f"{count}/s", burst=1, key="key")
    scene.add(Kind("mail", (("mail", "key", 1),)), limit=mail)
    scene.add(Kind("both", (("both", "", 1),)), limit=Limit("both", permits["both"], rate=f"{count}/s", burst=burst))
    pages = Limit("pages", rate="10/s", burst=burst)
    scene.add(Kind("pages", (("pages", "", 3),), late=True), limit=pages, cost=3)
    three = (("shared", "", 1), ("pages", "", 1), ("mail", "key", 1))
    scene.add(Kind("crawl", three, late=True, ordered=False), limit=[both, pages, mail])
    turns = Limit("turns", permits["turns"], fair_by="key", weights={1: 2})
    scene.add(Kind("turns", (("turns", "", 1),), late=True, ordered=False), limit=turns)
    # A message that is given up leaves the order to later ones.
    scene.add(Kind("soon", (("soon", "", 1),), ordered=False), limit=Limit("soon", 1), start_deadline=1.5)
    crowd = Limit("crowd", 1, max_parked=2)
    scene.add(Kind("crowd", (("crowd", "", 1),), late=True, ordered=False), limit=crowd)
    sited = Limit("sited", 1, per="worker")
    scene.add(Kind("sited", (("sited", "worker", 1),), ordered=False), limit=sited)
    scene.add(
        Kind("beside", (("sited", "worker", 1), ("shared", "", 1)), late=True, ordered=False), limit=[sited, both]
    )
    scene.add(Kind("once", identity="n", late=True))
    scene.add(Kind("once_early", (("one", "", 1),), identity="n"), limit=Limit("one", 1))
    # Of those that wait the newest runs; "last" while another one runs, too.
    last = {"on_conflict": "keep_last"}
    scene.add(Kind("last", (("own", "", 1),), identity="n", late=True, newest=True), limit=Limit("own", own), **last)
    scene.add(Kind("last_early", (("one", "", 1),), identity="n", newest=True), limit=Limit("one", 1), **last)
    newer = Kind("newer", (("one", "", 1),), identity="n", late=True)
    scene.add(newer, limit=Limit("one", 1), on_conflict="replace")
    scene.add(Kind("kept", identity="n", late=True, remember=3600.0))
    scene.add(Kind("kept_early", (("own", "", 1),), identity="n", remember=3600.0), limit=Limit("own", own))
    app.finalize()
    return scene
