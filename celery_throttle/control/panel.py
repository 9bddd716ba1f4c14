"""Register the remote control commands, with their names and arguments. A worker answers them (remote_step.py).

Celery looks a command up in the sending process too, so each call of ``celery`` loads this module. The module imports
only modules that Celery has loaded, and the table of the changes.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command, inspect_command

from celery_throttle.control.verbs import VERBS, Verb

__all__ = ["STEERS", "WORDS", "register", "signature"]

#: The words after the positional arguments. Celery's own way to take any number of words passes the last positional
#: argument twice.
WORDS = tuple(f"word{number}" for number in range(1, 8))
#: The number of words of a command without a rate.
_FEW = 4


#: The changes, by their names in ``celery control``.
STEERS = {f"throttle_{verb.method}": verb for verb in VERBS.values()}


def register() -> None:
    """Register the commands with Celery in this process."""
    inspect_command(name="throttle", help="Show the tasks of the gate of this worker, its free slots and its store.")(
        _inspect
    )
    for name, verb in STEERS.items():
        control_command(name=name, signature=signature(verb), args=_places(verb), help=verb.help)(_steer(name))


def signature(verb: Verb) -> str:
    """Return the arguments of a change in the form of the help."""
    parts = ["LIMIT", "[N] [rate=50/m] [burst=10]" if verb.permits else "", "[KEY]"]
    parts += ["[for=2h]" if verb.lasts else "", "[why=...] [by=...]"]
    return " ".join(filter(None, parts))


def _places(verb: Verb) -> list[tuple[str, Any]]:
    """Return the arguments of a change in their order, in Celery's form."""
    permits = [("permits", None)] if verb.permits else []
    words = WORDS if verb.permits else WORDS[:_FEW]
    return [("limit", _signed), *permits, *((word, None) for word in words)]


def _inspect(state: Any, **_: Any) -> Any:
    from celery_throttle.version import versions  # noqa: PLC0415 - only a worker needs them

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
