"""All errors of the library, in one tree, and its one warning, ``NotAwaited``.

``ThrottleError``
    ``ConfigurationError``: an option or setting that cannot work; raised when the task is bound or the worker starts.
        ``WrongArguments``: arguments that the task does not take, where Celery does not check them; also a `TypeError`.
    ``DuplicateTask``: another call of a task that runs once has its lock, and ``on_conflict="raise"``.
    ``LeaseLost``: a lock or permit is lost: its lease ended, an operator took it away, or the store lost its data.
    ``LimitExceeded``: ``max_parked`` tasks of a limit are parked already.
    ``NoFencingToken``: ``self.fencing_token`` of a run that got no identity lock.
    ``NotAcquired``: no lock or permit was free within the timeout.
    ``ResultLost``: the first call of a remembered task has succeeded, and the result backend could not keep its result.
    ``StoreInUse``: the data of the store was not deleted, because workers, parked tasks or holders need it.
    ``StoreUnavailable``: the store (Redis) did not answer, or refused; ``__cause__`` has the client's error.
    ``UnusableMessage``: a message that no worker can run; its task fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "LeaseLost",
    "LimitExceeded",
    "NoFencingToken",
    "NotAcquired",
    "NotAwaited",
    "ResultLost",
    "StoreInUse",
    "StoreUnavailable",
    "ThrottleError",
    "UnusableMessage",
    "WrongArguments",
]


class ThrottleError(Exception):
    """Base class of all errors of celery_throttle."""


class ConfigurationError(ThrottleError):
    """An option or a setting cannot work; the message has its name and the fix.

    Attributes:
        shell: the message for a command line, where it differs: ``{command}`` is the command that was typed, and
            ``{throttle}`` the beginning of all commands.
    """

    shell = ""

    def for_shell(self, shell: str) -> Self:
        """Return the same error, with another message for a command line."""
        self.shell = shell
        return self


class WrongArguments(ConfigurationError, TypeError):
    """A call does not fit the parameters of its task, so its limits or its lock cannot be determined."""


class DuplicateTask(ThrottleError):
    """Another call with the same arguments is pending, runs or is remembered.

    Args:
        task_name: name of the task.
        existing_id: id of the other call, for ``AsyncResult``.
    """

    def __init__(self, task_name: str, existing_id: str) -> None:
        super().__init__(task_name, existing_id)
        self.task_name, self.existing_id = task_name, existing_id

    def __str__(self) -> str:
        return f"{self.task_name} is pending, running or remembered already, as {self.existing_id}"


class LeaseLost(ThrottleError):
    """A lock or permit is lost; another holder may have it, and writes since the loss may have to be undone."""


class LimitExceeded(ThrottleError):
    """A limit has ``max_parked`` parked tasks already, so this call was not published.

    Args:
        task_name: name of the task.
        limit: the limit, with its key.
        parked: number of parked tasks.
        most: ``max_parked`` of the limit.
    """

    def __init__(self, task_name: str, limit: str, parked: int, most: int) -> None:
        super().__init__(task_name, limit, parked, most)
        self.task_name, self.limit, self.parked, self.most = task_name, limit, parked, most

    def __str__(self) -> str:
        parked = f"limit {self.limit!r} has {self.parked} parked tasks, max_parked={self.most}"
        return f"{self.task_name} was not published: {parked}"


class NoFencingToken(ThrottleError, AttributeError):
    """A run has no fencing token, because it got no identity lock; it must not write to a resource that checks tokens.

    The error is an `AttributeError` too, so that ``inspect`` and ``unittest.mock`` can read a task that does not run.

    Args:
        task_name: name of the task.
        why: the reason, and the fix.
    """

    def __init__(self, task_name: str, why: str) -> None:
        # obj=None, so that Python does not suggest a similar attribute: `fencing_token_or_none` would not be safe.
        super().__init__(task_name, why, name="fencing_token", obj=None)
        self.task_name, self.why = task_name, why

    def __str__(self) -> str:
        return f"Task {self.task_name}: no fencing token: {self.why}"


class NotAcquired(ThrottleError):
    """No lock or permit was free within the timeout."""


class ResultLost(ThrottleError):
    """The first call of a remembered task has succeeded, so this one does not run; the result of the first is lost.

    Args:
        task_name: name of the task.
        first_id: id of the call that has succeeded.
    """

    def __init__(self, task_name: str, first_id: str) -> None:
        super().__init__(task_name, first_id)
        self.task_name, self.first_id = task_name, first_id

    def __str__(self) -> str:
        return (
            f"{self.task_name} has succeeded, as {self.first_id}, but its result is lost: the result backend was away "
            f"when it ended. It is not run again while it is remembered; task.unlock(...) forgets it"
        )


class StoreInUse(ThrottleError):
    """The data of the store was not deleted, because it is in use.

    Args:
        reasons: the users of the data, and the fixes.
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return f"Nothing was deleted: {'; '.join(self.reasons)}"


class StoreUnavailable(ThrottleError):
    """The store did not answer in time, or refused the call."""


class NotAwaited(UserWarning):
    """A throttled task is ``async def``, and Celery's own pools await no body; shown when the task is bound.

    ``warnings.filterwarnings("ignore", category=NotAwaited)`` turns it off, for a program that only publishes and
    cannot see that its workers have a pool that awaits.
    """


class UnusableMessage(ThrottleError, ValueError):
    """A message has a value that its task cannot run with, or that the store refuses; the text has both."""
