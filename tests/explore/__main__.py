"""Search small worlds (``--world plain/3:lease``), or replay a trace (``--world NAME --trace 'call 0; ...'``)."""

from __future__ import annotations

import argparse
import sys

from tests.explore.gates import CannotReplay, Drift, replay_beside, walk_beside
from tests.explore.search import replay, search
from tests.explore.store import Server
from tests.explore.worlds import CI_WORLDS, FAULTS, STEERING, make
from tests.simulation.server import serving


def _say(text: object) -> None:
    print(text, flush=True)  # noqa: T201


def main() -> int:
    about = "; ".join(f"{name}: {what}" for name, what in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.explore",
        description=__doc__,
        epilog=f"Faults: {about}; {', '.join(STEERING)}: an operator does so",
    )
    parser.add_argument("--world", action="append", help="its name, see worlds.py; any number; else those of CI")
    parser.add_argument("--states", type=int, default=20_000, help="at most, of each")
    parser.add_argument("--trace", help="replay these steps, with ';' between")
    parser.add_argument("--gates", action="store_true", help="with --trace: through the simulation's real gates, too")
    parser.add_argument("--walks", type=int, help="take so many random walks through model and real gates instead")
    options = parser.parse_args()
    with serving(Server) as server:
        wrong = [_wrong(name, server, options) for name in options.world or CI_WORLDS]
    return int(any(wrong))


def _wrong(name: str, server: Server, options: argparse.Namespace) -> bool:
    config = make(name)
    if options.walks:
        whole = sum(walk_beside(config, server, seed) for seed in range(options.walks))
        _say(f"{name}: {whole} of {options.walks} walks through real gates, too")
        return False
    if options.trace:
        steps = tuple(step.strip() for step in options.trace.split(";") if step.strip())
        try:
            (replay_beside if options.gates else replay)(config, server, steps)
        except (AssertionError, Drift, CannotReplay) as error:
            _say(f"{name}: {error}")
            return True
        _say(f"{name}: well")
        return False
    searched = search(config, server, most=options.states)
    _say(searched)
    for found in searched.found.values():
        _say(f"  {found}\n  python -m tests.explore --world {name} --trace '{'; '.join(found.trace)}'")
    return bool(searched.found)


if __name__ == "__main__":
    sys.exit(main())
