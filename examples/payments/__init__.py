"""A shop that charges every order once, whatever its customers and its machines do: ``python -m examples.payments``."""
