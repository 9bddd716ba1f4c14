"""Run the coroutines of a primitive: in an event loop, or at once, on a client that blocks.

Each primitive is written once, for asyncio. On a client that blocks, its coroutines never wait for a loop, so the class
for threads runs them to their end without one. What is there twice differs in more than the wait: result types, for
type checkers; and what goes on in the background, which is a thread or a task.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import update_wrapper
from inspect import isawaitable, signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from celery_throttle.store.scripts import Call

__all__ = ["Client", "ask", "blocking", "blocking_block", "run", "settled"]

P = ParamSpec("P")
T = TypeVar("T")
#: The kind of client of a primitive, for type checkers.
Client = TypeVar("Client")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for a loop; return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("this is for a client that blocks")


async def settled(value: Any) -> Any:
    """Return a value, or the result of an awaitable: clients for threads and for asyncio are used alike.

    Raises:
        asyncio.CancelledError: the task was cancelled, also if the awaitable has dropped that, as `asyncio.wait_for`
            does before Python 3.12 (python/cpython#86296). redis-py sends commands with it. Python 3.10 cannot tell.
    """
    if not isawaitable(value):
        return value
    before = _cancellations()
    result = await value
    if _cancellations() > before:
        raise asyncio.CancelledError
    return result


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None and sys.version_info >= (3, 11) else 0


async def ask(client: Any, call: Call) -> Any:
    """Send one call on a client of either kind and return its reply."""
    try:
        return await settled(client.execute_command(*call.evalsha()))
    except NoScriptError:
        return await settled(client.execute_command(*call.eval()))


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]],
) -> Callable[[Callable[[Any], T]], Callable[Concatenate[Any, P], T]]:
    """Give a class for threads a method of its twin for asyncio, with the docstring and result type that follow."""

    def decorate(described: Callable[[Any], T]) -> Callable[Concatenate[Any, P], T]:
        def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            result: T = run(_called(method, self, *args, **kwargs))
            return result

        _describe(call, method, described)
        return call

    return decorate


def blocking_block(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[Any]],
) -> Callable[[Callable[[Any], T]], Callable[Concatenate[Any, P], AbstractContextManager[T]]]:
    """As `blocking`, for a method whose result is for ``async with``; the result type is that of the block's value."""

    def decorate(described: Callable[[Any], T]) -> Callable[Concatenate[Any, P], AbstractContextManager[T]]:
        @contextmanager
        def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            block = _called(method, self, *args, **kwargs)
            held: T = run(block.__aenter__())
            try:
                yield held
            except BaseException as error:
                if not run(block.__aexit__(type(error), error, error.__traceback__)):
                    raise
            else:
                run(block.__aexit__(None, None, None))

        _describe(call, method, described, "AbstractContextManager[{}]")
        return call

    return decorate


def _called(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return method(*args, **kwargs)  # nothing of its body runs yet
    except TypeError as error:
        raise TypeError(str(error).removeprefix("Async")) from None


def _describe(call: Any, method: Callable[..., Any], described: Callable[..., Any], returns: str = "{}") -> None:
    update_wrapper(call, described)
    returns = returns.format(signature(described).return_annotation)
    vars(call)["__signature__"] = signature(method).replace(return_annotation=returns)
