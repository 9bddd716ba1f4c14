"""For those who use a web framework, one module for each."""
