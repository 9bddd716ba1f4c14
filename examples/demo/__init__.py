"""A cap over two real workers, shown live; one of them is killed half way: ``python -m examples.demo``."""
