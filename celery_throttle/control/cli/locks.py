"""``locks`` and ``unlock``: identity locks of singletons."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import JSON_ARRAY, JSON_OBJECT

from celery_throttle.control.cli import params
from celery_throttle.control.cli.output import Column, span, when
from celery_throttle.control.cli.session import FOUND, WRONG, Ended, command, typed, typed_again
from celery_throttle.control.limit_control import MOST
from celery_throttle.errors import WrongArguments
from celery_throttle.tasks.registry import dedups_of
from celery_throttle.tasks.throttled import Throttled
from celery_throttle.tasks.throttled import unlock as take_away

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.cli.session import Session

_LOCKED = (
    Column("TASK", lambda row: row.task_id),
    Column("STATE", lambda row: row.state),
    Column("SINCE", lambda row: when(row.since)),
    Column("EXPIRES IN", lambda row: span(row.expires_in)),
    Column("FENCING TOKEN", lambda row: row.fencing_token, right=True),
    Column("RUNS NEXT", lambda row: row.next_id or ""),
)
_LOCKS = (
    Column("TASK", lambda row: row.task_id),
    Column("NAME", lambda row: row.task_name or ""),
    Column("STATE", lambda row: row.state),
    Column("WORKER", lambda row: row.worker or ""),
    *_LOCKED[2:],
)


# The arguments of a call, named as in `celery call`.
_args = click.option("-a", "--args", type=JSON_ARRAY, default="[]", help="Its arguments in order, JSON: '[17]'.")
_kwargs = click.option("-k", "--kwargs", type=JSON_OBJECT, default="{}", help="Its arguments by name, JSON.")


@command("locks")
@click.argument("task", required=False)
@_args
@_kwargs
@click.option("--most", type=click.IntRange(min=1), default=MOST, show_default=True, help="Rows at most.")
def locks(session: Session, task: str | None, args: list[Any], kwargs: dict[str, Any], most: int) -> None:
    """Show the identity lock of a call of TASK with these arguments; without TASK, all locks."""
    if task is None:
        _all(session, args, kwargs, most)
        return
    with _as_arguments(task):
        found = _task(session, task).locked_by(*args, **kwargs)
    session.output.show_rows(_LOCKED, [found] if found else [], nothing="The lock is free.")


@command("unlock")
@click.argument("task", required=False)
@_args
@_kwargs
@click.option("--identity", help="Instead of TASK: the identity of the lock, from locks --json.")
@params.by
@params.why
def unlock(
    session: Session, task: str | None, args: list[Any], kwargs: dict[str, Any], identity: str | None, **signature: Any
) -> None:
    """Free the identity lock of a call of TASK with these arguments.

    A running task goes on, beside the next one; the running task has the smaller fencing token.
    """
    if (task is None) == (identity is None) or (identity and (args or kwargs)):
        raise click.UsageError(
            f"write `{typed('unlock', 'TASK')}`, with --args and --kwargs, or `{typed('unlock', '--identity', 'ID')}`"
        )
    if task is None:
        unlocked = session.throttle.unlock(str(identity), **signature)
    else:
        with _as_arguments(task):
            unlocked = take_away(_task(session, task), args, kwargs, **signature)
    session.output.show({"unlocked": unlocked}, "The lock is free." if unlocked else "The lock was free.")


@contextmanager
def _as_arguments(task: str) -> Iterator[None]:
    try:
        yield
    except WrongArguments as error:
        fix = typed_again(task, "--args", "[17]", "--kwargs", '{"amount": 5}')
        raise Ended(f"{error}: write them as JSON, as in `{fix}`", WRONG) from None


def _all(session: Session, args: list[Any], kwargs: dict[str, Any], most: int) -> None:
    if args or kwargs:
        raise click.UsageError(f"--args and --kwargs need a task: write `{typed('locks', 'TASK', '--args', '[17]')}`")
    session.output.show_rows(_LOCKS, session.throttle.locks(most=most), nothing="No lock is held.")


def _task(session: Session, name: str) -> Throttled:
    task = session.app.tasks.get(name)
    if not isinstance(task, Throttled):
        singletons = ", ".join(sorted(dedups_of(session.app))) or "none"
        raise Ended(f"No throttled task {name!r} in this app. Its singletons: {singletons}", FOUND)
    return task
