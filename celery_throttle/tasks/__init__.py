"""The parts that a task author uses: `Throttled`, publishing, and the tasks that this library adds to an app."""
