"""Fast JSON without spaces."""

from __future__ import annotations

import json

__all__ = ["quote", "write"]

write = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder for each call
quote = json.encoder.encode_basestring_ascii  # the encoder's own function for text, without its overhead
