"""What the tests share: real workers, a journal of what ran, waiting for a condition."""
