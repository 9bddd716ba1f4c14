"""Options, receivers and a serializer that raise what is no `Exception`, or take their time, as the test asks.

Variables of the environment, for one worker:

- ``RAISES``: the name of the error that options raise for "bad", `SystemExit` by default.
- ``DIES``: the name of a thread of the gate that dies when the test lets "die" go.
- ``BREAKS``: a method of the gate that raises or does nothing, see ``_BROKEN``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate
from kombu.serialization import register

from celery_throttle import RateLimited, Throttled, signals
from celery_throttle.worker.loop import Loop
from celery_throttle.worker.running import Running
from celery_throttle.worker.store_side.tally import Tally
from celery_throttle.worker.timekeeper import Timekeeper
from tests.support.apps import new_app, run_held, task_maker
from tests.support.journal import Journal

app = new_app("rude", accept_content=["json", "rude"])
make = task_maker(app, run_held)

_ERRORS: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit("rude"),
    "WorkerShutdown": lambda: WorkerShutdown(3),
    "WorkerTerminate": lambda: WorkerTerminate(3),
    "GeneratorExit": GeneratorExit,
}


def of(label: str, *_: str) -> Any:
    """Return the label, or raise for one that is bad; read by each kind of option."""
    if label == "bad":
        error = _ERRORS[os.environ.get("RAISES", "SystemExit")]()
        raise error
    return label


def cost_of(label: str, *_: str) -> int:
    return len(of(label)) // 100 + 1


def _decode(text: Any) -> Any:
    if Journal.from_environment().is_let_go("decode"):
        raise SystemExit("rude")
    return json.loads(bytes(text) if isinstance(text, memoryview) else text)


register("rude", json.dumps, _decode, "application/x-rude", "utf-8")

key = make("key", base=Throttled, limit=1, key=of)
cost = make("cost", base=Throttled, limit=1, cost=cost_of)
unique = make("unique", base=Throttled, singleton=True, unique_on=of)
hold = make("hold", base=Throttled, limit=1)
other = make("other", base=Throttled, limit=1)
skips = make("skips", base=Throttled, singleton=True, on_conflict="skip")
plain = make("plain")


@app.task(base=Throttled, limit=1, bind=True, shared=False, name=f"{__name__}.limited")
def limited(self: Any, label: str) -> str:
    """Raise `RateLimited` as a tracing library might: with an object in the headers of its message."""
    if label == "bad":
        self.request.get("trace")["span"] = object()
        raise RateLimited(0.1, max_rounds=3)
    return label


def _exit(signal: Any, **_: Any) -> None:
    """Raise in each process of a worker; the test's own process imports this, too."""
    if os.environ.get("RECEIVERS") == "exit":
        raise SystemExit(f"rude receiver of {signal.name}")


def _note(signal: Any, event: Any, **_: Any) -> None:
    Journal.note("signal", name=signal.name, task_id=event.task_id)


def _wait(**_: Any) -> None:
    if os.environ.get("RECEIVERS") == "wait":
        Journal.from_environment().wait_let_go("receiver")


for _name in ("task_parked", "task_resumed", "permit_reclaimed", "lease_lost", "duplicate_dropped"):
    for _receiver in (_exit, _note, *([_wait] if _name == "lease_lost" else [])):
        getattr(signals, _name).connect(_receiver, weak=False, dispatch_uid=_receiver.__name__)


# -- threads that die, and parts that are broken -----------------------------------------------------------------------


def _dies(method: Callable[..., Any]) -> Callable[..., Any]:
    def act(*args: Any) -> Any:
        if Journal.from_environment().is_let_go("die"):
            raise GeneratorExit("a defect")
        return method(*args)

    return act


def _raises(*_: Any) -> None:
    raise OSError("a defect")


_parts: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "timekeeper": (Timekeeper, "_next", _dies(Timekeeper._next)),
    "gate": (Loop, "_drain_wakes", _dies(Loop._drain_wakes)),
    "count": (Tally, "ended", _raises),
    "end": (Running, "give_back", lambda *_, **__: None),
}
for _variable in ("DIES", "BREAKS"):
    if _part := os.environ.get(_variable):
        setattr(*_parts[_part])
