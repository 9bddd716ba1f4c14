"""What touches the store: connections, calls, renewals."""
