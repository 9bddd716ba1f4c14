"""``set`` and ``reset``, ``pause`` and ``resume``, ``disable`` and ``enable``; ``release-hold``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.session import command, typed
from celery_throttle.control.limit_control import NOTHING_TO_DO
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from datetime import timedelta

    from celery_throttle.control.cli.session import Session
    from celery_throttle.control.forecast import Forecast
    from celery_throttle.control.limit_control import LimitControl

__all__ = ["COMMANDS"]

_dry_run = click.option("--dry-run", is_flag=True, help="Only print the effect.")


@command("set")
@params.limit
@params.permits
@params.rate
@params.burst
@params.key
@params.lasts
@_dry_run
@params.by
@params.why
def set_(
    session: Session,
    limit: str,
    permits: int | None,
    rate: tuple[str, ...],
    burst: tuple[int, ...],
    key: str | None,
    lasts: timedelta | None,
    dry_run: bool,
    **signature: Any,
) -> None:
    """Set another number of permits, another rate, or both for now (an override).

    More permits take effect at once. With fewer, running tasks go on, and no task starts until there is room. Another
    rate counts from the last start. The declared numbers stay visible; reset ends the override.

    --dry-run prints how many tasks would start at once, and why the others
    would wait: it queries the workers for their queues, and changes nothing.
    """
    steers = session.limit(limit, key)
    if permits is None and not rate:
        beside = [f"--burst={burst[0]}"] if burst else []
        number, pace = typed("set", limit, "5"), typed("set", limit, "--rate", "50/m", *beside)
        raise click.UsageError(f"A number of permits or a rate is missing: write `{number}` or `{pace}`")
    if burst and not rate:
        fix = typed("set", limit, str(permits), "--rate", "50/m", f"--burst={burst[0]}")
        raise click.UsageError(f"--burst needs --rate beside it: write `{fix}`")
    if len(burst) > 1 and len(burst) != len(rate):
        rates = [f"--rate={each}" for each in rate]
        raise click.UsageError(
            f"{len(burst)} bursts for {counted(len(rate), 'rate')}: write one for all, "
            f"`{typed('set', limit, *rates, f'--burst={burst[0]}')}`, or one for each"
        )
    paces: Any = {"rate": list(rate) or None, "burst": list(burst) if len(burst) > 1 else next(iter(burst), None)}
    if dry_run:
        _print_forecast(session, steers.forecast(permits, **paces))
        return
    steers.override(permits, **paces, until=lasts, **signature)
    _show(session, steers)


@command("reset")
@params.limit
@params.key
@_dry_run
@params.by
@params.why
def reset(session: Session, limit: str, key: str | None, dry_run: bool, **signature: Any) -> None:
    """End the overrides of permits and of rates: the code's numbers hold again."""
    steers = session.limit(limit, key)
    if dry_run:
        _print_forecast(session, steers.forecast(after="reset"))
        return
    _show(session, steers, changed=steers.reset(**signature), nothing=NOTHING_TO_DO["reset"])


@command("pause")
@params.limit
@params.key
@params.lasts
@params.by
@params.why
def pause(session: Session, limit: str, key: str | None, lasts: timedelta | None, **signature: Any) -> None:
    """Let no task start.

    Running tasks go on, and arriving tasks are parked; resume ends the pause.
    """
    steers = session.limit(limit, key)
    steers.pause(until=lasts, **signature)
    _show(session, steers)


@command("resume")
@params.limit
@params.key
@_dry_run
@params.by
@params.why
def resume(session: Session, limit: str, key: str | None, dry_run: bool, **signature: Any) -> None:
    """End a pause: parked tasks start at once, as far as there is room."""
    steers = session.limit(limit, key)
    if dry_run:
        _print_forecast(session, steers.forecast(after="resume"))
        return
    _show(session, steers, changed=steers.resume(**signature), nothing=NOTHING_TO_DO["resume"])


@command("disable")
@params.limit
@params.key
@params.lasts
@params.by
@params.why
def disable(session: Session, limit: str, key: str | None, lasts: timedelta | None, **signature: Any) -> None:
    """Enforce neither permits nor rates: all parked tasks start.

    enable ends that. Running tasks are still counted.
    """
    steers = session.limit(limit, key)
    steers.disable(until=lasts, **signature)
    _show(session, steers)


@command("enable")
@params.limit
@params.key
@_dry_run
@params.by
@params.why
def enable(session: Session, limit: str, key: str | None, dry_run: bool, **signature: Any) -> None:
    """Enforce the limit again; running tasks go on."""
    steers = session.limit(limit, key)
    if dry_run:
        _print_forecast(session, steers.forecast(after="enable"))
        return
    _show(session, steers, changed=steers.enable(**signature), nothing=NOTHING_TO_DO["enable"])


@command("release-hold")
@params.limit
@params.key
@_dry_run
@params.by
@params.why
def release_hold(session: Session, limit: str, key: str | None, dry_run: bool, **signature: Any) -> None:
    """Let the tasks start at once that a task's RateLimited holds back.

    Without --key: the limit and all its keys.
    """
    steers = session.limit(limit, key)
    if dry_run:
        _print_forecast(session, steers.forecast(after="release-hold"))
        return
    _show(session, steers, changed=steers.release_hold(**signature), nothing=NOTHING_TO_DO["release_hold"])


def _print_forecast(session: Session, forecast: Forecast) -> None:
    if session.output.as_json:
        session.output.json(forecast)
    else:
        session.output.say(forecast)


def _show(session: Session, steers: LimitControl, *, changed: bool = True, nothing: str = "") -> None:
    """Print the status of the limit after the change."""
    status = steers.status()
    if session.output.as_json:
        session.output.json({"changed": changed, "status": status})
        return
    if not changed:
        session.output.say(nothing.format(Bucket(steers.name, steers.key)))
    session.show_limits([status])


COMMANDS = {each.name: each for each in (set_, reset, pause, resume, disable, enable, release_hold)}
