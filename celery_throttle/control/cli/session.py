"""What all commands share: which app and store are meant, how it is shown, and how it ends."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from celery import Celery
from celery.bin.base import CeleryCommand, CeleryOption

from celery_throttle.control.cli.columns import LIMITS, LimitRow
from celery_throttle.control.cli.output import Output
from celery_throttle.control.findings import Commands
from celery_throttle.control.throttle_control import ThrottleControl, as_shown
from celery_throttle.control.waits import oldest_lines, reasons
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.policy import limits_of
from celery_throttle.core.store_url import shown
from celery_throttle.core.wording import one_line
from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_throttle.control.limit_control import LimitControl
    from celery_throttle.store.limit_status import LimitStatus

__all__ = [
    "FOUND",
    "PARTLY",
    "InUse",
    "NotFound",
    "Session",
    "Unreachable",
    "Wrong",
    "blank_app",
    "command",
    "in_shell",
    "typed",
    "typed_again",
    "typed_before",
]

#: The exit code of a command that found something that needs attention.
FOUND = 1
#: The exit code of a command that found nothing, and could not look at everything.
PARTLY = 4


class _InOneLine(click.ClickException):
    """Ends the command with one line on stderr."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(" ".join(message.split())))


class NotFound(_InOneLine):
    """There is no such limit or task."""

    exit_code = FOUND


class InUse(_InOneLine):
    """What is to be deleted is needed still."""

    exit_code = FOUND


class Wrong(_InOneLine):
    """The command or the configuration is."""

    exit_code = 2


class Unreachable(_InOneLine):
    """The store does not answer, or refuses."""

    exit_code = 3


class Session:
    """One call of a command.

    Args:
        app: whose limits are meant.
        output: where what it says goes.
        by_url: whether it is no app of the user's, but a store that was named.

    Attributes:
        throttle: looks into them and steers them.
    """

    def __init__(self, app: Any, output: Output, *, by_url: bool) -> None:
        self.app, self.output, self.by_url = app, output, by_url
        self.throttle = ThrottleControl(app)

    def limit(self, name: str, key: str | None) -> LimitControl:
        """Return what steers a limit, or one key of it, also if it is written as it is shown: ``tenant[acme]``."""
        try:
            name, known_key = as_shown(self.throttle, name, key)
        except ConfigurationError as error:
            raise NotFound(self._as_written(name) or in_shell(error)) from None
        return self.throttle.limit(name, key=known_key)

    def limits(self, name: str, key: str | None) -> tuple[LimitControl, ...]:
        """Return the same of each limit of a task, if a task is named; for commands that only read."""
        try:
            return self.throttle.limits(name, key=key)
        except ConfigurationError:
            return (self.limit(name, key),)

    def _as_written(self, name: str) -> str:
        """Return how to write one key of a limit, if that is what half a name means: ``tenant[acme``."""
        limit, bracket, key = name.partition("[")
        try:
            self.throttle.limit(limit)
        except ConfigurationError:
            return ""
        key = key.removesuffix("]") or "KEY"
        meant = typed_again(limit, "--key", key)
        return f"No limit {name!r}: write `{meant}`" if bracket else ""

    def commands(self) -> Commands:
        """How what is to be typed begins: as this command does, but for passwords."""
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
        """Write how limits stand, as a table.

        Args:
            rows: of limits and keys.
            keys: that are counted in the rows of their limits.
            one_line_each: cells that are too long for the terminal are cut.
        """
        keyed = {name for name, limit in limits_of(policies_of(self.app).values()).items() if limit.key is not None}
        of_limits: dict[str, list[LimitStatus]] = {row.name: [] for row in (*rows, *keys) if row.key is not None}
        for each in keys:
            of_limits[each.name].append(each)
        keyed.update(of_limits, (row.name for row in rows if row.keys))
        made = [
            LimitRow(row, common=True, keys=tuple(of_limits.get(row.name, ())))
            if row.key is None and row.name in keyed
            else LimitRow(row)
            for row in rows
        ]
        nothing = "No limits are known: no worker has declared any."
        self.output.table(LIMITS, self._with_reasons(made), nothing=nothing, one_line_each=one_line_each)

    def _with_reasons(self, rows: list[LimitRow]) -> list[LimitRow]:
        """Return the rows with why tasks wait where the limit has room; for a limit with keys, its oldest task."""
        lines = {row.status.bucket: row.status for row in rows if not row.common}
        common = [row.status.name for row in rows if row.common and row.status.keys and not row.status.stopped]
        lines |= {Bucket(name): line for name, line in oldest_lines(self.app, common).items()}
        found = reasons(self.app, lines.values())
        by_row = {row: found.get(line.bucket) for row, line in lines.items()}
        return [row._replace(waits=by_row.get(row.status.bucket)) for row in rows]


def typed_before(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return how the command line of this process names its app: ``celery -A proj``."""
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
    """Return a ``throttle`` command as it is to be typed here: with the app or the store of the command that runs."""
    context = click.get_current_context()
    url, prefix = context.params.get("url"), context.params.get("prefix")
    options = [*(["--url", shown(url)] if url else []), *(["--prefix", prefix] if prefix else [])]
    return f"{_begin()} throttle {shlex.join([*command.split(), *options, *words])}"


def typed_again(*words: str) -> str:
    """Return the command that runs, as it is to be typed with other words."""
    return typed(str(click.get_current_context().info_name), *words)


def _begin() -> str:
    is_named = click.get_current_context().find_root().params.get("app") is not None
    return typed_before(sys.argv, os.environ) if is_named else "celery"


def in_shell(error: ConfigurationError) -> str:
    """Return what is wrong and what to do, for a command line."""
    text = error.shell or str(error)
    name = click.get_current_context().info_name
    return text.replace("{command}", f"{{throttle}} {name}").replace("{throttle}", f"{_begin()} throttle")


def blank_app(url: str, prefix: str | None) -> Any:
    """Return an app that knows a store and nothing else."""
    app: Any = Celery("throttle", set_as_current=False)
    app.conf.update({"throttle_url": url} | ({} if prefix is None else {"throttle_prefix": prefix}))
    return app


class _Command(CeleryCommand):
    """Takes a number below zero for what it is, and not for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click."""
        given = tuple(args)  # click takes them out
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not error.option_name[1:].isdecimal():
                raise
            raise click.UsageError(f"{_below_zero(given)!r} is no whole number of 1 or more", ctx) from None
        except click.UsageError as error:
            # It may have a word that was typed.
            raise click.UsageError(one_line(error.message), error.ctx or ctx) from None
        return rest


def _below_zero(args: Sequence[str]) -> str:
    return next((each for each in args if each[:1] == "-" and each[1:].isdecimal()), "-1")


def command(name: str) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a command of a function, which takes a `Session` and what click finds, and returns the exit code."""

    def make(function: Callable[..., int | None]) -> click.Command:
        @click.pass_context
        @wraps(function)
        def run(ctx: click.Context, /, *, as_json: bool, url: str | None, prefix: str | None, **options: Any) -> None:
            output = Output(as_json=as_json, plain=bool(getattr(ctx.obj, "no_color", False)))
            with _ended_in_one_line(url):
                app = _app_of(ctx, url, prefix)
            with _ended_in_one_line(settings_of(app).url):
                ctx.exit(function(Session(app, output, by_url=bool(url)), **options) or 0)

        made = click.command(name, cls=_Command)(run)
        made.params.extend(_COMMON)
        return made

    return make


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
        help="The store, where there is no app to name with -A (celery -A proj ...).",
        help_group=_GROUP,
    ),
    CeleryOption(["--prefix"], help="With --url: the throttle_prefix, if it is not 'throttle'.", help_group=_GROUP),
)


@contextmanager
def _ended_in_one_line(url: str | None) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise Unreachable(f"{shown(url)}: {error}" if url else str(error)) from error
    except ConfigurationError as error:
        raise Wrong(in_shell(error)) from error


def _app_of(ctx: click.Context, url: str | None, prefix: str | None) -> Any:
    """Return the app that is meant, its tasks imported."""
    named = ctx.find_root().params.get("app") is not None
    if named and (url or prefix):
        raise click.UsageError("The app of -A says which store: leave --url and --prefix out")
    if prefix and not url:
        raise click.UsageError("--prefix needs --url beside it")
    app = blank_app(url, prefix) if url else ctx.obj.app
    try:
        settings_of(app)
    except ConfigurationError as error:
        if named or url:
            raise
        raise Wrong(
            f"No app and no store is known: write celery -A proj throttle {ctx.info_name}, or --url "
            f"redis://host:6379/0 behind it ({error})"
        ) from None
    try:
        # What autodiscover and `imports` name, as a worker does: which groups of limits there are is said by the tasks.
        app.loader.import_default_modules()
        app.finalize(auto=True)
    except ConfigurationError:
        raise
    except Exception as error:
        raise Wrong(f"The tasks of the app cannot be imported: {type(error).__name__}: {error}") from error
    return app
