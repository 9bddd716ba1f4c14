"""The code that touches Celery: its requests, pool, prefetch count, acknowledgements and signals."""
