"""What can go wrong, in one tree.

``ThrottleError``
    ``ConfigurationError``: an option or setting that cannot work; raised when the task is bound or the worker starts.
    ``LeaseLost``: what was held is held no longer: its lease ended, somebody took it away or the store lost its data.
    ``NotAcquired``: somebody else had it all the time one was ready to wait.
    ``StoreUnavailable``: the store (Redis) did not answer, or refused; ``__cause__`` has the client's error.
"""

from __future__ import annotations

__all__ = ["ConfigurationError", "LeaseLost", "NotAcquired", "StoreUnavailable", "ThrottleError"]


class ThrottleError(Exception):
    """Something went wrong in celery_throttle."""


class ConfigurationError(ThrottleError):
    """An option or a setting cannot work; the message names it and says what to write instead."""


class LeaseLost(ThrottleError):
    """What was held is held no longer; others may have it, and what was written since may have to be undone."""


class NotAcquired(ThrottleError):
    """Somebody else had it all the time one was ready to wait."""


class StoreUnavailable(ThrottleError):
    """The store did not answer in time or refused the call."""
