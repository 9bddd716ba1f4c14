"""Everything that runs in a worker's main process: the gate, and what it needs to keep its word."""
