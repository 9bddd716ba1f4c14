"""Celery's own integration tests, once as they are and once with every task throttled: each difference is ours."""
