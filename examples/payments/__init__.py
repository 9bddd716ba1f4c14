"""A shop that charges every order once, despite repeated requests and lost workers: ``python -m examples.payments``."""
