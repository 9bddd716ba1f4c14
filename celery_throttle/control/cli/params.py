"""The options and arguments of several commands: limits, keys, durations; with their completion in a shell."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from celery.app.utils import find_app

from celery_throttle.control.cli.session import blank_app, typed
from celery_throttle.control.throttle_control import ThrottleControl
from celery_throttle.core import durations
from celery_throttle.core.checks import MOST
from celery_throttle.core.policy import limits_of
from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

__all__ = ["burst", "by", "duration", "key", "lasts", "limit", "optional_limit", "permits", "rate", "why", "yes"]


def duration(text: str) -> timedelta:
    """Read ``90s``, ``10m``, ``2h``, ``1d`` or several of them, ``1h30m``; more than 0."""
    try:
        return durations.read_duration(text)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


class Permits(click.ParamType):  # type: ignore[type-arg] # not generic at run time, before click 8.2
    """A number of permits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; a rate or an invalid number fails with the command to write."""
        text, limit = str(value), ctx.params.get("limit", "LIMIT") if ctx else "LIMIT"
        if "/" in text:
            self.fail(f"{text!r} is a rate: write `{typed('set', limit, '--rate', text)}`", param, ctx)
        if not text.isascii() or not text.isdecimal() or not int(text[:20]):
            none = text.lstrip("-0") == ""
            instead = f"`{typed('pause', limit)}` lets none start" if none else f"write `{typed('set', limit, '5')}`"
            self.fail(f"{text!r} is no whole number of 1 or more: {instead}", param, ctx)
        if len(text) > len(str(MOST)) or int(text) > MOST:
            self.fail(f"{text!r} is more than {MOST}: `{typed('disable', limit)}` enforces nothing", param, ctx)
        return int(text)


def _known(ctx: click.Context) -> tuple[Any, ThrottleControl]:
    """Return the app of an incomplete command line, and its control; click has carried out no part of that line."""
    url = ctx.params.get("url")
    named = blank_app(url, ctx.params.get("prefix")) if url else ctx.find_root().params["app"]
    app = find_app(named) if isinstance(named, str) else named  # with Celery 5.4 click has found it
    app.loader.import_default_modules()
    app.finalize(auto=True)
    return app, ThrottleControl(app)


def _limits(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        app, throttle = _known(ctx)
    except Exception:  # noqa: BLE001 - a traceback would disturb the command line
        return []
    names = set(limits_of(policies_of(app).values()))
    with suppress(Exception):  # without a store, complete the names of the code
        names |= {each.name for each in throttle.status()}
    return _beginning(incomplete, names)


def _keys(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        _, throttle = _known(ctx)
        # While the value of an option is missing, click has not parsed the arguments.
        name = ctx.params.get("limit") or next(iter(ctx.args), None)
        return _beginning(incomplete, {each.key for each in throttle.status() if each.key and each.name == name})
    except Exception:  # noqa: BLE001 - as above
        return []


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(incomplete))


limit = click.argument("limit", shell_complete=_limits)
optional_limit = click.argument("limit", required=False, shell_complete=_limits)
key = click.option(
    "--key", shell_complete=_keys, help="One key of the limit, as in the calls of tasks; without --key: all keys."
)
permits = click.argument("permits", type=Permits(), required=False)
rate = click.option("--rate", multiple=True, metavar="50/m", help="Another rate; repeat it for several rates.")
burst = click.option(
    "--burst",
    type=click.IntRange(1, MOST),
    multiple=True,
    help="How many tasks may start at once at that rate; as in the code by default.",
)
lasts = click.option("--for", "lasts", type=duration, metavar="2h", help="End the change after this time.")
by = click.option("--by", help="The name of the operator; by default user@host.")
yes = click.option("--yes", is_flag=True, help="Do it; without --yes the command only counts.")
why = click.option("--why", default="", help="The reason, for later readers.")
