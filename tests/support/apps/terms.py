"""Tasks with limits by key, several limits, rates, costs, turns and deadlines.

A run is counted by its label, which is mostly its key. A task that holds goes on until the test lets its name go.
``LOOK_EVERY`` in the environment replaces the seconds between a worker's own looks.
"""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.looks import look_every

look_every()

app = new_app("terms")


make_held = task_maker(app, run_held)
make_timed = task_maker(app, run_for)

# Not throttled.
plain = make_timed("plain")
plain_hold = make_held("plain_hold")


@app.task(shared=False, bind=True)
def collect(self: Any, labels: list[str], label: str = "collect") -> list[str]:
    """The end of a chord."""
    run_for(self, label)
    return sorted(labels)


@app.task(shared=False, bind=True)
def on_error(self: Any, *_: Any) -> str:
    return run_for(self, "on_error")


# -- by key ----------------------------------------------------------------------------------------------------------


@app.task(shared=False, bind=True, base=Throttled, limit=1, key="customer_id")
def by_name(self: Any, customer_id: Any, name: str = "go") -> str:
    return run_held(self, str(customer_id), name)


@app.task(shared=False, bind=True, base=Throttled, limit=1, key="order.customer")
def by_path(self: Any, order: dict[str, str]) -> str:
    return run_held(self, order["customer"], "go")


def _customer(order: dict[str, str], **_: Any) -> str:
    return order["customer"].lower()


@app.task(shared=False, bind=True, base=Throttled, limit=1, key=_customer)
def by_function(self: Any, order: dict[str, str]) -> str:
    return run_held(self, order["customer"].lower(), "go")


@app.task(shared=False, bind=True, base=Throttled, limit=1, key="customer_id", max_retries=1)
def by_name_retried(self: Any, customer_id: str, name: str) -> str:
    """Changes the argument that its key came from."""
    if self.request.retries == 0:
        run_for(self, customer_id)
        raise self.retry(args=(f"not {customer_id}", name), countdown=0)
    return run_held(self, customer_id, name)


# -- several ---------------------------------------------------------------------------------------------------------

_several = [Limit("api", 8), Limit("tenant", 2, key="tenant_id")]


@app.task(shared=False, bind=True, base=Throttled, limit=_several)
def both(self: Any, tenant_id: str, seconds: float = 0.0) -> str:
    return run_for(self, tenant_id, seconds)


@app.task(shared=False, bind=True, base=Throttled, limit=_several)
def both_hold(self: Any, tenant_id: str, name: str = "go") -> str:
    return run_held(self, tenant_id, name)


# -- rates -----------------------------------------------------------------------------------------------------------


paced = make_timed("paced", base=Throttled, rate="50/s", burst=3)


@app.task(shared=False, bind=True, base=Throttled, limit=2, rate="50/s")
def paced_two(self: Any, label: str) -> str:
    return run_for(self, label, 0.01)


@app.task(shared=False, bind=True, base=Throttled, rate="20/s", key="who")
def paced_each(self: Any, who: str) -> str:
    return run_for(self, who)


seldom = make_timed("seldom", base=Throttled, rate="1/s", burst=2)


@app.task(shared=False, bind=True, base=Throttled, rate="50/s", burst=4, cost="pages")
def paced_pages(self: Any, label: str, pages: int) -> str:
    return run_for(self, f"{label} {pages}")


# -- costs -----------------------------------------------------------------------------------------------------------

memory = Limit("memory", 4)


@app.task(shared=False, bind=True, base=Throttled, limit=memory, cost="pages")
def by_pages(self: Any, label: str, pages: int = 1) -> str:  # noqa: ARG001 - what it costs
    return run_held(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=memory, cost=lambda label, parts: len(parts))
def by_parts(self: Any, label: str, parts: list[int]) -> str:  # noqa: ARG001 - what it costs
    return run_held(self, label)


# -- turns, deadlines, at most so many in line -----------------------------------------------------------------------


@app.task(shared=False, bind=True, base=Throttled, limit=Limit("turns", 1, fair_by="who"))
def in_turns(self: Any, who: str, name: str = "") -> str:
    return run_held(self, who, name) if name else run_for(self, who)


slot = Limit("slot", 1)


patient = make_held("patient", base=Throttled, limit=slot)
hurried = make_timed("hurried", base=Throttled, limit=slot, start_deadline=0.5)
in_time = make_timed("in_time", base=Throttled, limit=slot, start_deadline=60)
hurried_once = make_held("hurried_once", base=Throttled, limit=slot, start_deadline=0.5, singleton=True, unique_on=[])


@app.task(shared=False, bind=True, base=Throttled, limit=1, max_parked=2)
def few_wait(self: Any, label: str, *, hold: bool = False) -> str:
    return run_held(self, label) if hold else run_for(self, label)


@app.task(shared=False, bind=True, base=Throttled, limit=_several, singleton=True)
def both_once(self: Any, tenant_id: str, name: str) -> str:
    return run_held(self, tenant_id, name)
