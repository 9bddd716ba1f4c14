"""A thousand units, five thousand buyers, a hundred at a time, no lock: ``python -m examples.flash_sale``."""
