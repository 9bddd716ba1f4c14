"""``celery -A proj throttle ...``: what `Throttle` does, on the command line."""
