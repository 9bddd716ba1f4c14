"""The code that touches the store: connections, calls, renewals."""
