"""Register the remote control commands, with their names and arguments. A worker answers them (remote_step.py).

Celery looks a command up in the sending process too, so each call of ``celery`` loads this module. The module imports
only modules that Celery has loaded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from celery.worker.control import control_command, inspect_command

__all__ = ["STEERS", "WORDS", "Steers", "register"]

#: The words after the positional arguments. Celery's own way to take any number of words passes the last positional
#: argument twice.
WORDS = tuple(f"word{number}" for number in range(1, 8))
#: The number of words of a command without a rate.
_FEW = 4


class Steers(NamedTuple):
    """A command that changes a limit: the method of `LimitControl`, and its arguments."""

    method: str
    help: str
    permits: bool = False
    lasts: bool = False

    @property
    def signature(self) -> str:
        """The arguments in the form of the help."""
        parts = ["LIMIT", "[N] [rate=50/m] [burst=10]" if self.permits else "", "[KEY]"]
        parts += ["[for=2h]" if self.lasts else "", "[why=...] [by=...]"]
        return " ".join(filter(None, parts))

    @property
    def places(self) -> list[tuple[str, Any]]:
        """The arguments in their order, in Celery's form."""
        permits = [("permits", None)] if self.permits else []
        words = WORDS if self.permits else WORDS[:_FEW]
        return [("limit", _signed), *permits, *((word, None) for word in words)]


#: By name.
STEERS = {
    "throttle_override": Steers(
        "override", "Set another number of permits of a limit, or another rate, for now.", permits=True, lasts=True
    ),
    "throttle_reset": Steers("reset", "End an override of a limit: the code's numbers hold again."),
    "throttle_pause": Steers("pause", "Let no task of a limit start.", lasts=True),
    "throttle_resume": Steers("resume", "End a pause of a limit."),
    "throttle_disable": Steers("disable", "Enforce nothing of a limit.", lasts=True),
    "throttle_enable": Steers("enable", "Enforce a limit again."),
    "throttle_release_hold": Steers(
        "release_hold", "Let the tasks start at once that a task's RateLimited holds back."
    ),
}


def register() -> None:
    """Register the commands with Celery in this process."""
    inspect_command(name="throttle", help="Show the tasks of the gate of this worker, its free slots and its store.")(
        _inspect
    )
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
    """Return a limit with the operator that sends the command, and an id by which the workers make the change once."""
    import uuid  # noqa: PLC0415 - only a process that sends such a command needs them

    from celery_throttle.clients import signed  # noqa: PLC0415

    return {"limit": limit, "by": signed(None, "")[0], "request": uuid.uuid4().hex}
