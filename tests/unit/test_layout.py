"""The layout of keys and records has a number, and each change of the layout gets another one."""

from __future__ import annotations

import hashlib
import re

from celery_throttle.core.keys import LAYOUT, Keys
from tests.support.workers import ROOT

SHARED = ROOT / "celery_throttle" / "store" / "lua" / "gate" / "shared"
#: What each layout was, as `described` writes it. A new line is a new release that shares no keys with the last one.
#: The number that no release has had yet may get another text.
LAYOUTS = {3: "d3a92f112a1fbfda"}


def described() -> str:
    """Return a text of the names and types of all keys, the parts of records, and the forms of all objects."""
    keys = re.findall(r"^-- KEYS\[\d+\] +(\w+) +(\w+)", (SHARED / "begin.lua").read_text(), flags=re.MULTILINE)
    version = re.findall(r"^local VERSION = \d+$", (SHARED / "begin.lua").read_text(), flags=re.MULTILINE)
    (head, *_) = (SHARED / "records.lua").read_text().split("\nlocal ", 1)
    parts = re.findall(r"^-- +(\w+)  ", head, flags=re.MULTILINE)
    shapes = re.findall(r"'[^']+'", (SHARED / "shapes.lua").read_text())
    return repr((Keys("p").names, keys, version, parts, shapes))


def test_the_number_of_the_layout_is_that_of_its_keys_and_records() -> None:
    """Two releases with one number share a store, so each has to read what the other writes."""
    digest = hashlib.sha256(described().encode()).hexdigest()[:16]
    assert max(LAYOUTS) == LAYOUT
    assert LAYOUTS[LAYOUT] == digest, "raise LAYOUT if a release has had this number; then write the new text here"


def test_the_text_has_all_keys_and_the_parts_of_records() -> None:
    assert all(f"('{name}', " in described() for name in Keys("p").names)
    assert all(f"'{part}'" in described() for part in ("ticket", "attempt", "nonce", "identity", "permits"))
