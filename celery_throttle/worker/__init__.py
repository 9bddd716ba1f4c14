"""The gate and its parts: all code that runs in a worker's main process."""
