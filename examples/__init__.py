"""Examples, each a package of its own; see README.md beside this file."""
