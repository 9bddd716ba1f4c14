"""The remote control commands: what they are called and what each takes. A worker answers them (remote_step.py).

Celery looks a command up in the process that sends it, too, so every call of ``celery`` loads this file. It loads
nothing that Celery has not loaded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery.worker.control import control_command, inspect_command

__all__ = ["STEERS", "WORDS", "Steers", "register"]

#: What may follow the arguments that have a place of their own. Celery's own way to take any number of words takes the
#: last one of those once more.
WORDS = tuple(f"word{number}" for number in range(1, 8))
#: How many of them a command takes that takes no rate.
_FEW = 4


class Steers(NamedTuple):
    """A command that changes a limit: the method of `LimitControl`, and what it takes."""

    method: str
    help: str
    permits: bool = False
    lasts: bool = False

    @property
    def signature(self) -> str:
        """As people write it."""
        parts = ["LIMIT", "[N] [rate=50/m] [burst=10]" if self.permits else "", "[KEY]"]
        parts += ["[for=2h]" if self.lasts else "", "[why=...] [by=...]"]
        return " ".join(filter(None, parts))

    @property
    def places(self) -> list[tuple[str, Any]]:
        """The arguments in their order, as Celery wants them."""
        permits = [("permits", None)] if self.permits else []
        words = WORDS if self.permits else WORDS[:_FEW]
        return [("limit", _signed), *permits, *((word, None) for word in words)]


#: By what they are called.
STEERS = {
    "throttle_override": Steers(
        "override", "Have another number of permits of a limit, or another rate, for now.", permits=True, lasts=True
    ),
    "throttle_reset": Steers("reset", "End an override of a limit: the code's numbers hold again."),
    "throttle_pause": Steers("pause", "Let nothing of a limit start.", lasts=True),
    "throttle_resume": Steers("resume", "End a pause of a limit."),
    "throttle_disable": Steers("disable", "Enforce nothing of a limit.", lasts=True),
    "throttle_enable": Steers("enable", "Enforce a limit again."),
    "throttle_release_hold": Steers("release_hold", "Let start at once what a task's RateLimited holds back."),
}


def register() -> None:
    """Have Celery know the commands in this process."""
    inspect_command(name="throttle", help="What the throttle holds here, and how its store is reached.")(_inspect)
    for name, steers in STEERS.items():
        takes = {"signature": steers.signature, "args": steers.places, "help": steers.help}
        control_command(name=name, **takes)(_steer(name))


def _inspect(state: Any, **_: Any) -> Any:
    from celery_throttle.control.versions import versions  # noqa: PLC0415 - only a worker needs them

    remote = _remote(state)
    return {"versions": versions(), "groups": []} if remote is None else remote.inspect()


def _steer(name: str) -> Any:
    def steer(state: Any, **arguments: Any) -> Any:
        remote = _remote(state)
        if remote is None:
            return {"error": "no task of this worker is throttled"}
        return remote.steer(name, arguments)

    return steer


def _remote(state: Any) -> Any:
    return getattr(state.consumer.controller, "throttle_remote", None)


def _signed(limit: str) -> dict[str, str]:
    """Return a limit, with what the workers do not know: who sends this, and that it is the same for all of them."""
    import uuid  # noqa: PLC0415 - only who sends such a command needs them

    from celery_throttle.clients import signed  # noqa: PLC0415

    return {"limit": limit, "by": signed(None, "")[0], "request": uuid.uuid4().hex}
