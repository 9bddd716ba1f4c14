"""What throttling costs, measured on real workers: ``python -m benchmarks --help``."""
