"""What a worker reports: its log, signals, events, and what `inspect` returns."""
