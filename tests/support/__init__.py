"""Shared parts of the tests: real workers, a journal of runs, waiting for a condition."""
