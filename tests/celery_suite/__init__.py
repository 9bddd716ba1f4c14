"""Celery's own integration tests, once as they are and once with every task throttled: what differs is ours."""
