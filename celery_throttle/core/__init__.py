"""Values and rules without I/O, Redis or Celery."""
