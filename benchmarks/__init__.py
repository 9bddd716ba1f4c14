"""Measure the costs of throttling on real workers: ``python -m benchmarks --help``."""
