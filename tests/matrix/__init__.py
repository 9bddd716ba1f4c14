"""The most important tests on each Python, Celery, server and broker, and the table of their outcomes."""
