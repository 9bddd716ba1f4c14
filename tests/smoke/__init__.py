"""The main promises once more: pytest-celery's fixtures, with processes of this machine in place of containers."""
