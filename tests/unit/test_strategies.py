"""Which strategies of the user's are refused, because their requests would not come by the gate."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from celery import Task
from celery.worker import strategy as theirs
from celery.worker.strategy import default

from celery_throttle import ConfigurationError, Throttled
from celery_throttle.worker.celery_side.strategies import check_strategy
from tests.unit.refusals import make_app, task_of


def body() -> None:
    """Do nothing."""


def wraps(task: Any, app: Any, consumer: Any) -> Any:
    handle = default(task, app, consumer)
    return lambda *args: handle(*args, callbacks=())


def wraps_by_name(task: Any, app: Any, consumer: Any) -> Any:
    from celery.worker import strategy as here  # noqa: PLC0415

    return here.default(task, app, consumer)


def wraps_by_module(task: Any, app: Any, consumer: Any) -> Any:
    return theirs.default(task, app, consumer)


def wraps_by_text(task: Any, app: Any, consumer: Any) -> Any:
    return task.app.loader.import_from_cwd("celery.worker.strategy:default")(task, app, consumer)


def by_helper(task: Any, app: Any, consumer: Any) -> Any:
    return wraps(task, app, consumer)


def by_hand(task: Any, app: Any, consumer: Any) -> Any:  # noqa: ARG001
    def handler(message: Any, *_: Any) -> None:
        consumer.on_task_request(task.Request(message))

    return handler


def to_the_pool(task: Any, app: Any, consumer: Any) -> Any:  # noqa: ARG001
    def handler(message: Any, *_: Any) -> None:
        task.Request(message).execute_using_pool(consumer.pool)

    return handler


def dropped(task: Any, app: Any, consumer: Any) -> Any:  # noqa: ARG001
    return lambda *args, **how: None


class ByClass:
    def __init__(self, task: Any, app: Any, consumer: Any) -> None:
        self.handle = default(task, app, consumer)

    def __call__(self, *args: Any, **how: Any) -> Any:
        return self.handle(*args, **how)


class Buffered(Task):  # type: ignore[type-arg]
    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # type: ignore[override] # noqa: ARG002, N802
        return lambda *args, **how: self.flush(consumer)

    def flush(self, consumer: Any) -> None:
        consumer.pool.apply_async(print)


class Flushed(Buffered):
    abstract = True

    def flush(self, consumer: Any) -> None:
        consumer.on_task_request(None)


class Above(Buffered):
    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any:  # type: ignore[override] # noqa: N802
        return super().Strategy(task, app, consumer)


PASS = {
    "wraps": wraps, "by a name": wraps_by_name, "by a module": wraps_by_module, "by a text": wraps_by_text,
    "helper": by_helper, "by hand": by_hand, "class": ByClass, "partial": partial(wraps), "static": staticmethod(wraps),
    "path": f"{__name__}:by_hand", "dotted path": f"{__name__}.wraps", "Celery's": "celery.worker.strategy:default",
}  # fmt: skip
REFUSED = {
    "pool": to_the_pool, "drops": dropped, "path": f"{__name__}:to_the_pool", "partial": partial(to_the_pool),
}  # fmt: skip


@pytest.mark.parametrize("strategy", PASS.values(), ids=PASS)
def test_strategies_that_come_by_the_gate_are_left_alone(strategy: Any) -> None:
    check_strategy(task_of(body, limit=1, Strategy=strategy))


@pytest.mark.parametrize("strategy", REFUSED.values(), ids=REFUSED)
def test_other_strategies_are_refused(strategy: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Task shop.f: limit=1 cannot hold, .*consumer\.on_task_request"):
        check_strategy(task_of(body, limit=1, Strategy=strategy))


@pytest.mark.parametrize(("base", "refused"), [(Buffered, True), (Above, True), (Flushed, False)])
def test_a_strategy_of_a_base_class(base: type[Any], refused: bool) -> None:
    both = type("Both", (Throttled, base), {"abstract": True, "__module__": __name__})
    app = make_app()
    app.task(body, name="shop.f", shared=False, base=both, singleton=True, limit=2)
    app.finalize()
    task = app.tasks["shop.f"]
    if not refused:
        check_strategy(task)
        return
    with pytest.raises(ConfigurationError, match=r"limit=2, singleton=True cannot hold.*Strategy \(.*\.Strategy\)"):
        check_strategy(task)
