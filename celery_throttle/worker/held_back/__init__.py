"""Runs that wait in a worker unacknowledged, and the reasons for that."""
