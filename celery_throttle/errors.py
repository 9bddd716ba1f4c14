"""What can go wrong, in one tree.

``ThrottleError``
    ``ConfigurationError``: an option or setting that cannot work; raised when the task is bound or the worker starts.
        ``WrongArguments``: a call that its task does not take, where Celery has not checked that; a `TypeError`, too.
    ``DuplicateTask``: another call of a task that runs once has its lock, and ``on_conflict="raise"``.
    ``LeaseLost``: what was held is held no longer: its lease ended, somebody took it away or the store lost its data.
    ``LimitExceeded``: as many calls wait for a limit as may (``max_parked``).
    ``NoFencingToken``: ``self.fencing_token`` of a run that got no identity lock.
    ``NotAcquired``: somebody else had it all the time one was ready to wait.
    ``ResultLost``: the first call of a remembered task has succeeded, and the result backend could not keep its result.
    ``StoreInUse``: the data of the store is not deleted, since workers, parked tasks or holders need it.
    ``StoreUnavailable``: the store (Redis) did not answer, or refused; ``__cause__`` has the client's error.
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
    "ResultLost",
    "StoreInUse",
    "StoreUnavailable",
    "ThrottleError",
    "WrongArguments",
]


class ThrottleError(Exception):
    """Something went wrong in celery_throttle."""


class ConfigurationError(ThrottleError):
    """An option or a setting cannot work; the message names it and says what to write instead.

    Attributes:
        shell: the same for a command line, where it differs: ``{command}`` is the command that was typed, and
            ``{throttle}`` what all commands begin with.
    """

    shell = ""

    def for_shell(self, shell: str) -> Self:
        """Return the same error, with what a command writes instead of the message."""
        self.shell = shell
        return self


class WrongArguments(ConfigurationError, TypeError):
    """A call has not the arguments of its task, so what it needs of its limits or of its lock cannot be known."""


class DuplicateTask(ThrottleError):
    """Another call with the same arguments is pending, runs or is remembered.

    Args:
        task_name: the task.
        existing_id: the id of that other call, for ``AsyncResult``.
    """

    def __init__(self, task_name: str, existing_id: str) -> None:
        super().__init__(task_name, existing_id)
        self.task_name, self.existing_id = task_name, existing_id

    def __str__(self) -> str:
        return f"{self.task_name} is pending, running or remembered already, as {self.existing_id}"


class LeaseLost(ThrottleError):
    """What was held is held no longer; others may have it, and what was written since may have to be undone."""


class LimitExceeded(ThrottleError):
    """As many calls wait for a limit as may; this one was not published.

    Args:
        task_name: the task.
        limit: the limit, with its key.
        parked: how many wait.
        most: its ``max_parked``.
    """

    def __init__(self, task_name: str, limit: str, parked: int, most: int) -> None:
        super().__init__(task_name, limit, parked, most)
        self.task_name, self.limit, self.parked, self.most = task_name, limit, parked, most

    def __str__(self) -> str:
        return f"{self.task_name} was not published: {self.parked} wait for limit {self.limit!r}, {self.most} may"


class NoFencingToken(ThrottleError, AttributeError):
    """A run has no fencing token, since it got no identity lock; it must not write what the token protects.

    It is an `AttributeError` too, so that ``inspect`` and ``unittest.mock`` can look at a task that does not run.

    Args:
        task_name: the task.
        why: why there is none, and what to do.
    """

    def __init__(self, task_name: str, why: str) -> None:
        # With a name and no object Python does not suggest attributes of the task; `fencing_token_or_none` is not safe.
        super().__init__(task_name, why, name="fencing_token", obj=None)
        self.task_name, self.why = task_name, why

    def __str__(self) -> str:
        return f"Task {self.task_name}: no fencing token: {self.why}"


class NotAcquired(ThrottleError):
    """Somebody else had it all the time one was ready to wait."""


class ResultLost(ThrottleError):
    """The first call of a remembered task has succeeded, so this one does not run; the first one's result is lost.

    Args:
        task_name: the task.
        first_id: the id of the call that has succeeded.
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
    """The data of the store was not deleted, since it is in use.

    Args:
        reasons: what uses it, and what to do.
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return f"Nothing was deleted: {'; '.join(self.reasons)}"


class StoreUnavailable(ThrottleError):
    """The store did not answer in time or refused the call."""
