"""kombu's filesystem transport, made safe for several processes: a broker that is not Redis and needs no server.

As it comes, a consumer may take the file of a message before its content was written, and then ends with it.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from kombu.transport.filesystem import Channel
from kombu.utils.json import dumps


def _put(self: Any, queue: str, payload: Any, **_: Any) -> None:
    unique = f"{time.monotonic_ns():020d}_{uuid.uuid4()}"
    final = Path(self.data_folder_out) / f"{unique}.{queue}.msg"
    written = final.with_name(unique)  # which no consumer looks for
    written.write_text(dumps(payload))
    written.rename(final)


def make_safe() -> None:
    """Write each message at once, in the order of publishing."""
    Channel._put = _put  # type: ignore[method-assign]
