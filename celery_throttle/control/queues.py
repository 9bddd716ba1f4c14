"""Which queues the workers consume."""

from __future__ import annotations

from typing import Any

__all__ = ["NOBODY_ANSWERED", "consumed"]

#: Seconds that workers have to answer.
_PATIENCE = 1.0
#: What could not be looked at if it returns None.
NOBODY_ANSWERED = "Which queues the workers consume: none answered a remote control command within a second."


def consumed(app: Any) -> set[str] | None:
    """Return the queues of the workers that answer, None if none does or none can be asked."""
    if not app.conf.broker_write_url:  # Celery would ask one that nobody has named
        return None
    try:
        with app.connection_for_write(connect_timeout=_PATIENCE) as connection:
            connection.ensure_connection(max_retries=1, timeout=_PATIENCE)
            asks = app.control.inspect(timeout=_PATIENCE, connection=connection)
            answers: dict[str, list[dict[str, Any]]] | None = asks.active_queues()
    except Exception:  # noqa: BLE001 - each broker has its own, and many have no remote control
        return None
    return {queue["name"] for queues in answers.values() for queue in queues} if answers else None
