"""``set`` and ``reset``, ``pause`` and ``resume``, ``disable`` and ``enable``; ``release-hold``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.session import command, typed
from celery_throttle.control.verbs import VERBS
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.cli.session import Session
    from celery_throttle.control.limit_control import LimitControl
    from celery_throttle.control.verbs import Verb

_dry_run = click.option(
    "--dry-run", is_flag=True, help="Only print how many tasks would start at once, and why the others would wait."
)


def _command(verb: Verb) -> click.Command:
    """Return the command of a change."""

    def change(session: Session, limit: str, key: str | None, dry_run: bool = False, **given: Any) -> None:
        control = session.limit(limit, key)
        signature = {name: given.pop(name) for name in ("by", "why")}
        until = {"until": given.pop("lasts")} if verb.lasts else {}
        numbers = _numbers(limit, **given) if verb.permits else {}
        if dry_run:
            after: dict[str, Any] = {"after": verb.name} if verb.ends else {}
            forecast = control.forecast(**numbers, **after)
            session.output.show(forecast, forecast)
            return
        changed = getattr(control, verb.method)(**numbers, **until, **signature)
        _show(session, control, changed=changed is not False, nothing=verb.nothing)

    for option in reversed([*_options(verb)]):
        change = option(change)
    return command(verb.name, f"{verb.help}\n\n{verb.details}")(change)


def _options(verb: Verb) -> Iterator[Any]:
    yield params.limit
    if verb.permits:
        yield from (params.permits, params.rate, params.burst)
    yield params.key
    if verb.lasts:
        yield params.lasts
    if verb.permits or verb.ends:
        yield _dry_run
    yield from (params.by, params.why)


def _numbers(limit: str, permits: int | None, rate: tuple[str, ...], burst: tuple[int, ...]) -> dict[str, Any]:
    """Return the checked numbers of an override, as arguments of `LimitControl.override`."""
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
    one_or_all = list(burst) if len(burst) > 1 else next(iter(burst), None)
    return {"permits": permits, "rate": list(rate) or None, "burst": one_or_all}


def _show(session: Session, control: LimitControl, *, changed: bool, nothing: str) -> None:
    """Print the status of the limit after the change."""
    status = control.status()
    if session.output.as_json:
        session.output.json({"changed": changed, "status": status})
        return
    if not changed:
        session.output.line(nothing.format(Bucket(control.name, control.key)))
    session.show_limits([status])


for each in VERBS.values():
    _command(each)
