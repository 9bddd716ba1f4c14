"""What waits in a worker unacknowledged, and why."""
