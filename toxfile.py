"""What tox loads beside ``tox.ini``: it adds nothing to the output of a command that prints JSON.

``tox -e demo -- --json`` is for programs to read, and tox has no setting for it, only ``-qq`` to type each time.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from tox.plugin import impl

if TYPE_CHECKING:
    from tox.config.sets import ConfigSet
    from tox.session.state import State
    from tox.tox_env.api import ToxEnv

_PRINTS_JSON = "--json" in sys.argv


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:  # noqa: ARG001 - its names are tox's
    """Print only why an environment cannot be made."""
    if _PRINTS_JSON:
        state.conf.options.quiet = state.conf.options.verbose
        logging.getLogger().setLevel(logging.ERROR)


@impl
def tox_before_run_commands(tox_env: ToxEnv) -> None:  # noqa: ARG001 - as above
    """From here on its exit status tells how it went."""
    if _PRINTS_JSON:
        logging.getLogger().setLevel(logging.CRITICAL + 1)
