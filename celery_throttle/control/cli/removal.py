"""``remove-data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from celery_throttle.control.cli import params
from celery_throttle.control.cli.session import InUse, command, typed
from celery_throttle.core.wording import counted
from celery_throttle.errors import StoreInUse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.cli.session import Session
    from celery_throttle.control.removal import StoredData

__all__ = ["COMMANDS"]


@command("remove-data")
@params.yes
@click.option("--force", is_flag=True, help="With --yes: also if workers, parked tasks or holders use the data.")
@params.by
@params.why
def remove_data(session: Session, yes: bool, force: bool, **signature: Any) -> None:
    """Delete all keys of the prefix, after throttling was removed.

    The last step, after drain: limits, overrides, audit, counts, identity
    locks and remembered calls. Without --yes only counts them.
    """
    if force and not yes:
        raise click.UsageError(f"--force needs --yes beside it: write `{typed('remove-data', '--yes', '--force')}`")
    try:
        data = session.throttle.remove_data(**signature, dry_run=not yes, force=force)
    except StoreInUse as error:
        raise InUse(f"{error}; --force beside --yes deletes the data anyway") from None
    if session.output.as_json:
        session.output.json({"done": yes, "data": data, "in_use": data.in_use})
        return
    if yes:
        session.output.line(f"{counted(data.keys, 'key')} deleted.")
    else:
        for line in _counts(data):
            session.output.line(line)
    for other in data.others:
        session.output.line(f"Keys that begin with {other} stay: another group, prefix or release has them.")


def _counts(data: StoredData) -> Iterator[str]:
    yield f"keys            {data.keys}, of {' and '.join(data.spaces)}"
    yield f"bytes           {'not known' if data.size is None else data.size}"
    yield f"workers         {data.workers}"
    yield f"parked          {data.parked}"
    yield f"held            {data.held}"
    yield f"identity locks  {data.locks}"
    yield f"remembered      {data.remembered}"
    yield f"set aside       {data.set_aside}"
    yield ""
    yield from (f"! In use: {each}" for each in data.in_use)
    yield from (f"! Would go: {each}" for each in data.lost)
    if not data.keys:
        yield "Nothing is stored."
    elif data.in_use:
        yield "--yes refuses while the data is in use; --yes --force deletes the data anyway."
    else:
        yield "All of it would be deleted; --yes does it."


COMMANDS = {"remove-data": remove_data}
