"""``web``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_throttle.control.cli.session import WRONG, Ended, command

if TYPE_CHECKING:
    from celery_throttle.control.cli.session import Session


@command("web")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; another one needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8460, show_default=True, help="0: any free port.")
@click.option(
    "--token",
    envvar="THROTTLE_WEB_TOKEN",
    show_envvar=True,
    help="Required to see the page: sign in with it, for twelve hours, or send it as 'Authorization: Bearer'.",
)
@click.option(
    "--root-path", default="", metavar="PATH", help="The path of the page behind a proxy, such as /ops/throttle."
)
@click.option("--read-only", is_flag=True, help="The page changes nothing.")
def web(session: Session, host: str, port: int, token: str | None, root_path: str, read_only: bool) -> None:
    """Serve the operator's page, until Ctrl-C.

    Without --token the page is for this machine alone: each of its users can read
    it and change limits.
    """
    try:
        from celery_throttle.web.serving import listening, root_of, serve  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Ended(f"The page needs {error.name}: pip install 'celery-fair-throttle[web]'", WRONG) from error
    root = root_of(root_path)
    listener, url = listening(host, port, token)
    url = f"{url.rstrip('/')}{root}/"
    with listener:
        if session.output.as_json:
            session.output.json({"url": url}, indent=None)
        else:
            session.output.line(f"{url} (Ctrl-C ends it)")
        serve(session.app, listener, session.commands(), token, "read" if read_only else "all", root)
