"""Tasks whose messages tests write by hand, and innocent ones beside them (``innocent``, and ``plain`` unthrottled).

``UNCHECKED`` in the environment takes a check of messages out, and what makes a text storable: of ids (``id``) or of
keys (``key``).
"""

from __future__ import annotations

import os
from typing import Any

from celery_throttle import Limit, Throttled
from celery_throttle.core import policy
from celery_throttle.core.json_text import quote
from celery_throttle.store import exchange
from celery_throttle.worker.celery_side import parsing
from tests.support.apps import new_app, run_for, run_held, task_maker

_unchecked: dict[str, Any] = {"id": (parsing, "stored_id", lambda task_id: task_id)}
_unchecked["key"] = (policy, "_is_key_text", lambda text: isinstance(text, str))
if _name := os.environ.get("UNCHECKED"):
    setattr(*_unchecked[_name])
    vars(exchange)["quoted"] = quote

app = new_app("odd")


def run_briefly(task: Any, label: str) -> str:
    """Note a run that takes as long as the next one needs to begin."""
    return run_for(task, label, 0.005)


make_timed = task_maker(app, run_briefly)
make_held = task_maker(app, run_held)

plain = make_timed("plain")
let = make_held("let")
innocent = make_timed("innocent", base=Throttled, limit=3)
one = make_timed("one", base=Throttled, limit=1)
one_late = make_timed("one_late", base=Throttled, limit=1, acks_late=True)
paced = make_timed("paced", base=Throttled, rate="1000/s", burst=1000)
keyed = make_timed("keyed", base=Throttled, limit=2, key="label")
fair = make_timed("fair", base=Throttled, limit=Limit("fair", 2, fair_by="label"))
once = make_timed("once", base=Throttled, singleton=True)
held = make_held("held", base=Throttled, limit=2, key="label")


def _cost(*_: object, **__: object) -> int:
    return 2


@app.task(shared=False, bind=True, base=Throttled, limit=Limit("weighed", 4), cost=_cost)
def weighed(self: Any, label: str, seconds: float = 0.005) -> str:
    return run_for(self, label, seconds)
