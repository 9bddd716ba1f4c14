"""``celery -A proj throttle ...``: the methods of `ThrottleControl` on the command line."""
