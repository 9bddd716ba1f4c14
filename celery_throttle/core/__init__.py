"""Values and rules: no I/O, nothing of Redis, nothing of Celery."""
