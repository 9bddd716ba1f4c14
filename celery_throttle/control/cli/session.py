"""The common parts of all commands: app and store, output, and exit codes."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import contextmanager
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

import click
from celery import Celery
from celery.bin.base import CeleryCommand, CeleryOption

from celery_throttle.control.cli.output import Column, Output
from celery_throttle.control.findings import Commands
from celery_throttle.control.rows import rows_of, with_reasons
from celery_throttle.control.throttle_control import ThrottleControl, as_shown
from celery_throttle.core.store_url import shown
from celery_throttle.core.wording import one_line
from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_throttle.control.limit_control import LimitControl
    from celery_throttle.control.rows import Row
    from celery_throttle.store.limit_status import LimitStatus

__all__ = [
    "COMMANDS",
    "FOUND",
    "PARTLY",
    "UNREACHABLE",
    "WRONG",
    "Ended",
    "Session",
    "blank_app",
    "command",
    "in_shell",
    "typed",
    "typed_again",
    "typed_before",
]

#: The exit codes: a finding needs attention, there is no such limit or task, or the data is in use; the command or the
#: configuration is wrong; the store does not answer, or refuses; no finding, but not everything could be checked.
FOUND, WRONG, UNREACHABLE, PARTLY = 1, 2, 3, 4


def _held(row: Row) -> str:
    status = row.status
    if row.keyed:
        each = "" if status.in_force is None else f"{status.in_force} each"
        if status.share and status.in_force is None:
            each = f"{status.share:.3g} of each worker"
        total = str(status.held_of_keys) if status.keys else ""
        return f"{total} ({each})" if total and each else total or each
    if status.bucket.is_open:
        return ""
    return str(status.held) if status.in_force is None else f"{status.held} of {status.in_force}"


def _parked(row: Row) -> str:
    if row.keyed:
        return str(row.status.parked_of_keys) if row.status.keys else ""
    return str(row.status.parked)


def _keys(row: Row) -> str:
    return str(row.status.keys) if row.keyed and row.status.keys else ""


_LIMITS = (
    Column("LIMIT", lambda row: row.status.bucket),
    Column("HELD", _held, right=True),
    Column("PARKED", _parked, right=True),
    Column("KEYS", _keys, right=True),
    Column("RATES", lambda row: ", ".join(rate.rate for rate in row.status.rates_in_force or row.status.rates)),
    Column("STATE", lambda row: "; ".join(each.text for each in row.states), folds=True),
)


class Ended(click.ClickException):
    """End the command with one line on stderr, and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(one_line(" ".join(message.split())))
        self.exit_code = code  # type: ignore[misc] # a class variable in click's types


class Session:
    """One call of a command.

    ``app``: None for a command that needs no store. ``by_url``: whether the user named a store with --url, and no app.
    """

    def __init__(self, app: Any, output: Output, *, by_url: bool) -> None:
        self.app, self.output, self.by_url = app, output, by_url

    @cached_property
    def throttle(self) -> ThrottleControl:
        """The control of the app's limits."""
        return ThrottleControl(self.app)

    def limit(self, name: str, key: str | None) -> LimitControl:
        """Return the control of a limit or key, which may be written as in the output: ``tenant[acme]``."""
        try:
            name, known_key = as_shown(self.throttle, name, key)
        except ConfigurationError as error:
            raise Ended(in_shell(error), FOUND) from None
        return self.throttle.limit(name, key=known_key)

    def limits(self, name: str, key: str | None) -> tuple[LimitControl, ...]:
        """Return the controls of all limits of a task, or of the named limit; for commands that only read."""
        try:
            return self.throttle.limits(name, key=key)
        except ConfigurationError:
            return (self.limit(name, key),)

    def commands(self) -> Commands:
        """Return the beginning of further commands: that of this command, without passwords."""
        if not self.by_url:
            return Commands(typed_before(sys.argv, os.environ))
        settings = settings_of(self.app)
        prefix = () if settings.prefix == settings.__class__.prefix else ("--prefix", settings.prefix)
        return Commands("celery", ("--url", shown(settings.url), *prefix))

    def show_limits(
        self,
        rows: Sequence[LimitStatus],
        keys: Sequence[LimitStatus] = (),
        *,
        one_line_each: bool = False,
    ) -> None:
        """Write the status of limits as a table.

        ``keys``: the keys whose states are counted in the rows of their limits. ``one_line_each``: as in
        `Output.table`.
        """
        made = with_reasons(self.app, rows_of(self.app, rows, keys))
        nothing = "No limits are known: no worker has declared any."
        self.output.table(_LIMITS, made, nothing=nothing, one_line_each=one_line_each)


def typed_before(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the beginning of this process's command line, with its app: ``celery -A proj``."""
    words = iter(argv[1:])
    named = environ.get("APP") or environ.get("CELERY_APP") or "proj"
    for word in words:
        if word == "throttle":
            break
        if word in ("-A", "--app"):
            named = next(words, named)
        elif word.startswith(("-A", "--app=")):
            named = word.removeprefix("--app=").removeprefix("-A")
    return shlex.join(["celery", "-A", named])


def typed(command: str, *words: str) -> str:
    """Return a ``throttle`` command to type, with the app or the store of the running command."""
    context = click.get_current_context()
    url, prefix = context.params.get("url"), context.params.get("prefix")
    options = [*(["--url", shown(url)] if url else []), *(["--prefix", prefix] if prefix else [])]
    return f"{_begin()} throttle {shlex.join([*command.split(), *options, *words])}"


def typed_again(*words: str) -> str:
    """Return the running command with other words, to type."""
    return typed(str(click.get_current_context().info_name), *words)


def _begin() -> str:
    is_named = click.get_current_context().find_root().params.get("app") is not None
    return typed_before(sys.argv, os.environ) if is_named else "celery"


def in_shell(error: ConfigurationError) -> str:
    """Return the text of an error, with its fix as a command line."""
    text = error.shell or str(error)
    return text.replace("{command}", typed_again()).replace("{throttle}", f"{_begin()} throttle")


def blank_app(url: str, prefix: str | None) -> Any:
    """Return an app that only has the settings of a store."""
    app: Any = Celery("throttle", set_as_current=False)
    app.conf.update({"throttle_url": url} | ({} if prefix is None else {"throttle_prefix": prefix}))
    return app


class _Command(CeleryCommand):
    """Report a negative number as a wrong number, not as an unknown option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; see click."""
        given = tuple(args)  # click empties the list
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name[1:].isdecimal():
                raise
            below_zero = next((each for each in given if each[:1] == "-" and each[1:].isdecimal()), "-1")
            raise click.UsageError(f"{below_zero!r} is no whole number of 1 or more", ctx) from None
        except click.UsageError as error:
            # The message may contain a typed word with control characters.
            raise click.UsageError(one_line(error.format_message()), error.ctx or ctx) from None
        return rest


def command(
    name: str, text: str | None = None, *, storeless: str = ""
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Return a decorator that makes a command of a function of a `Session` and click's options.

    The function returns the exit code, or None for 0. Its docstring is the help, unless there is another ``text``.
    Without the argument ``storeless`` the command needs no store.
    """

    def make(function: Callable[..., int | None]) -> click.Command:
        @click.pass_context
        @wraps(function)
        def run(ctx: click.Context, /, *, as_json: bool, url: str | None, prefix: str | None, **options: Any) -> None:
            output = Output(as_json=as_json, plain=bool(getattr(ctx.obj, "no_color", False)))
            app = None
            if not storeless or options[storeless] is not None:
                with _ended_in_one_line(url):
                    app = _app_of(ctx, url, prefix)
            with _ended_in_one_line(app and settings_of(app).url):
                ctx.exit(function(Session(app, output, by_url=bool(url)), **options) or 0)

        made = click.command(name, cls=_Command, help=text)(run)
        made.params.extend(_COMMON)
        COMMANDS[name] = made
        return made

    return make


#: The commands of the modules that were imported, by name.
COMMANDS: dict[str, click.Command] = {}
_GROUP = "Common Options"
_COMMON = (
    CeleryOption(
        ["--json", "as_json"],
        is_flag=True,
        help="Print JSON; its names are those of the Python attributes.",
        help_group=_GROUP,
    ),
    CeleryOption(
        ["--url"],
        metavar="URL",
        help="The store, if there is no app to name with -A (celery -A proj ...).",
        help_group=_GROUP,
    ),
    CeleryOption(["--prefix"], help="With --url: the throttle_prefix, if it is not 'throttle'.", help_group=_GROUP),
)


@contextmanager
def _ended_in_one_line(url: str | None) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise Ended(f"{shown(url)}: {error}" if url else str(error), UNREACHABLE) from error
    except ConfigurationError as error:
        raise Ended(in_shell(error), WRONG) from error


def _app_of(ctx: click.Context, url: str | None, prefix: str | None) -> Any:
    """Return the app of the command, with its tasks imported."""
    named = ctx.find_root().params.get("app") is not None
    if named and (url or prefix):
        raise click.UsageError("The app of -A has a store: leave --url and --prefix out")
    if prefix and not url:
        raise click.UsageError("--prefix needs --url beside it")
    app = blank_app(url, prefix) if url else ctx.obj.app
    try:
        settings_of(app)
    except ConfigurationError as error:
        if named or url:
            raise
        raise Ended(
            f"No app and no store is known: write celery -A proj throttle {ctx.info_name}, or --url "
            f"redis://host:6379/0 behind it ({error})",
            WRONG,
        ) from None
    try:
        # The tasks have the groups of limits, so import the same modules as a worker: autodiscover and `imports`.
        app.loader.import_default_modules()
        app.finalize(auto=True)
    except ConfigurationError:
        raise
    except Exception as error:
        message = f"The tasks of the app cannot be imported: {type(error).__name__}: {error}"
        raise Ended(message, WRONG) from error
    return app
