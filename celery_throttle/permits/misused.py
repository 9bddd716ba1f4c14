"""Raise helpful errors where a limit, or the return value of ``acquire_async``, is used as a permit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from celery_throttle.errors import ConfigurationError

__all__ = ["NotAPermit", "OnlyAsync"]


class NotAPermit:
    """Refuses in a limit the methods that its permits have."""

    name: str

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report the misuse too

        def release(self, *_: Any, **__: Any) -> NoReturn:
            raise self._wrong("release() gives back a permit: write permit = limit.acquire(), then permit.release()")

        def __enter__(self) -> NoReturn:
            raise self._wrong("it takes a permit to be held: write with limit.acquire(timeout=30): ...")

        async def __aenter__(self) -> NoReturn:
            raise self._wrong("it takes a permit to be held: write async with limit.acquire_async(timeout=30): ...")

        def __exit__(self, *_: object) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    def _wrong(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"Limit {self.name!r}: {why}")


class OnlyAsync:
    """Refuses ``with`` in an object that is for ``async with``."""

    _used = False

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            self._used = True  # else `__del__` would warn, too
            raise ConfigurationError("acquire_async is for async with: or write with limit.acquire(timeout=30): ...")

        def __exit__(self, *_: object) -> None: ...
