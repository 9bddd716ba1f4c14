"""``celery -A proj throttle ...``: what `ThrottleControl` does, on the command line."""
