"""The group of commands.

Each call of ``celery`` loads this module, so the module imports only modules that Celery has loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from celery.bin.base import handle_preload_options
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

from celery_throttle.control import panel
from celery_throttle.control.verbs import VERBS

__all__ = ["throttle"]

#: The module of each command, in the order of the help.
_MODULES = {
    "status": "look",
    "show": "look",
    "explain": "look",
    "report": "checks",
    "history": "look",
    "simulate": "simulate",
    "top": "look",
    **dict.fromkeys(VERBS, "steer"),
    "drop": "removal",
    "drain": "removal",
    "remove-data": "removal",
    "locks": "locks",
    "unlock": "locks",
    "audit": "look",
    "reap": "removal",
    "doctor": "checks",
    "metrics": "metrics",
    "runnable": "metrics",
    "web": "web",
}


class _LazyGroup(DYMGroup):  # type: ignore[misc] # for the same reason
    """Load a command at its call, or for its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(_MODULES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the whole first sentence of each command's help: click cuts it."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=1000)) for name, each in found if each])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in _MODULES:
            return None
        import_module(f"{__package__}.{_MODULES[cmd_name]}")
        from celery_throttle.control.cli.session import COMMANDS  # noqa: PLC0415 - most calls of celery do without

        return COMMANDS[cmd_name]


@click.group(cls=_LazyGroup)
@click.version_option(package_name="celery-fair-throttle", message="%(package)s %(version)s")
@click.pass_context
@handle_preload_options  # before Celery 5.7 each command has to call it
def throttle(ctx: click.Context, **_: Any) -> None:
    """See the limits of all workers, and steer them.

    \b
    Exit codes: 0 fine; 1 a finding needs attention, or there is no such
    limit or task; 2 the command or the configuration is wrong;
    3 the store cannot be reached, or refuses; 4 report found no alarm, but
    could not check everything.
    """


panel.register()  # here, because each `celery inspect` and `celery control` loads this module
