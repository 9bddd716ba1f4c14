"""JSON without spaces, written as fast as Python can."""

from __future__ import annotations

import json

__all__ = ["quote", "write"]

write = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder each time
quote = json.encoder.encode_basestring_ascii  # what the encoder writes for a text, without the way there
