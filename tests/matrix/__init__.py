"""What matters most, on each Python, Celery, server and broker, and the table of what came of it."""
