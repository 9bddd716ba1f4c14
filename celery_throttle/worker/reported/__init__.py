"""The reports of a worker: its log, signals, events, and the answer to `inspect`."""
