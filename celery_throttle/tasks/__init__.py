"""What a task author touches: `Throttled`, publishing, the tasks of ours that Celery has to know."""
