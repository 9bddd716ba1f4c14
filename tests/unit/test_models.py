"""Tasks with ``pydantic=True``: options read the models that the body gets, however a call spells its arguments."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Limit, Throttled
from celery_throttle.tasks.registry import call_of, dedup_of, policies_of

pydantic = pytest.importorskip("pydantic")
pytest.importorskip("celery", minversion="5.5")


class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    """A model with a value to convert, and defaults."""

    order_id: int
    tenant: str = "none"
    tags: frozenset[str] = frozenset()
    site: pydantic.AnyUrl | None = None  # type: ignore[name-defined]


#: The same call, as callers may spell it.
SPELT: dict[str, Any] = {
    "dict": {"order_id": 7},
    "with a default": {"order_id": 7, "tenant": "none"},
    "text": {"order_id": "7"},
    "model": Order(order_id=7),
}


def task_with(*, bind: bool = False, **options: Any) -> Any:
    app = Celery(broker="redis://", set_as_current=False)

    def ship(order: Order, note: str = "") -> None: ...

    def ship_bound(self: Any, order: Order, note: str = "") -> None: ...

    make: Any = app.task
    return make(ship_bound if bind else ship, base=Throttled, bind=bind, pydantic=True, shared=False, **options)


def identity(task: Any, *args: Any, **kwargs: Any) -> str:
    dedup = dedup_of(task)
    assert dedup is not None
    return dedup.plan(call_of(task, args, kwargs)).identity


def values(task: Any, *args: Any, **kwargs: Any) -> Any:
    return policies_of(task.app)[task.name].values(call_of(task, args, kwargs))


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"unique_on": ["order.order_id"]},
        {"unique_on": lambda order, note: order},
        {"unique_on": ["order.order_id"], "autoretry_for": (KeyError,)},
    ],
)
def test_an_identity_is_that_of_the_model(options: dict[str, Any], *, bind: bool) -> None:
    task = task_with(bind=bind, singleton=True, **options)
    found = {identity(task, each) for each in SPELT.values()} | {identity(task, order=each) for each in SPELT.values()}
    assert len(found) == 1
    assert identity(task, {"order_id": 8}) not in found


@pytest.mark.parametrize("key", ["order.tenant", lambda order, note: order.tenant])
@pytest.mark.parametrize("how", SPELT)
def test_a_key_and_a_cost_are_read_from_the_model(key: Any, how: str) -> None:
    task = task_with(limit=Limit("ship", 9, key=key), cost="order.order_id")
    found = values(task, SPELT[how], "x")
    assert found["keys"] == {"ship": "none"}
    assert found["cost"] == 7


def test_sets_and_types_of_pydantic_can_be_compared() -> None:
    task = task_with(singleton=True)
    one, other = ({"order_id": 7, "tags": tags, "site": "http://a.org"} for tags in (["a", "b"], ["b", "a"]))
    assert identity(task, {**one, "site": None}) == identity(task, {**other, "site": None})
    assert identity(task, one) == identity(task, {**one, "site": "http://a.org/"})


def test_arguments_that_the_model_refuses_are_read_as_given() -> None:
    """The task fails when it runs, as without the library."""
    task = task_with(singleton=True, limit=Limit("ship", 9, key="order.order_id"))
    assert identity(task, {"order_id": "x"}) != identity(task, {"order_id": "y"})
    assert values(task, {"order_id": "x"})["keys"] == {"ship": "x"}
    with pytest.raises(ConfigurationError, match=r"the call has no 'order\.order_id'"):
        values(task, {})


def test_other_tasks_get_their_arguments_as_given() -> None:
    app = Celery(broker="redis://", set_as_current=False)

    @app.task(base=Throttled, singleton=True, shared=False)
    def ship(order: Order) -> None: ...

    assert call_of(ship, ({"order_id": "7"},), {}).bound == {"order": {"order_id": "7"}}
