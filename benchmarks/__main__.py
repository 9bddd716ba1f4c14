"""``python -m benchmarks [names...]``: measure, print a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import (
    binding,
    caps,
    counter,
    durability,
    longest,
    longest_pages,
    market,
    once,
    order,
    overhead,
    page,
    recovery,
    semaphore,
    sites,
    store,
    terms,
    what_if,
)
from benchmarks.figures import table
from benchmarks.site import Bench
from celery_throttle.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.figures import Figure

BENCHMARKS: dict[str, dict[str, Callable[[Bench], list[Figure]]]] = {
    "binding": {"bind": binding.bind, "command": binding.command},
    "caps": {"few-long": caps.few_long, "many-short": caps.many_short, "backlog": caps.backlog},
    "counter": {"advance": counter.advance},
    "durability": {"safe": durability.safe},
    "longest": {"scripts": longest.scripts, "pages": longest_pages.pages, "first-load": longest.first_load},
    "market": {"trade": market.market},
    "once": {"publish": once.publish, "run": once.run, "lost": once.lost, "lock-bytes": once.lock_bytes},
    "order": {"order": order.order},
    "overhead": {"noop": overhead.noop, "bystanders": overhead.bystanders, "handover": overhead.handover},
    "page": {"overview": page.overview},
    "recovery": {"worker-killed": recovery.worker_killed, "child-killed": recovery.child_killed},
    "semaphore": {"three": semaphore.three, "one": semaphore.one},
    "sites": {"join": sites.join},
    "store": {
        "idle": store.idle,
        "bytes": store.bytes_each,
        "server-time": store.server_time,
        "reap": store.reap,
        "history": store.history,
    },
    "terms": {"rate": terms.rate, "keys": terms.keys, "turns": terms.turns},
    "what-if": {"hour": what_if.hour},
}


def main() -> int:
    """Return 1 if a benchmark failed or found a problem; a missed goal is a figure, not an error."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that workers and files are removed
    bench = Bench(rounds=arguments.rounds or (2 if arguments.quick else 5), quick=arguments.quick)
    figures: list[Figure] = []
    about = _about()
    try:
        for name, measure in _chosen(arguments.names).items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                figures += measure(bench)
            except Exception as error:  # noqa: BLE001  # the earlier figures must not be lost
                bench.problem(f"{name} could not be measured: {error!r}")
    except KeyboardInterrupt:
        bench.problem("interrupted")
    about["load_average_after"] = os.getloadavg()[0]
    print(" | ".join(f"{key} {value}" for key, value in about.items()), end="\n\n")
    print(table(figures))
    for problem in bench.problems:
        print(f"\nPROBLEM: {problem}")
    if arguments.json:
        _write(arguments.json, about, bench, figures)
    return 1 if bench.problems else 0


def _parser() -> argparse.ArgumentParser:
    names = "; ".join(f"{family}: {', '.join(members)}" for family, members in BENCHMARKS.items())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"families or single benchmarks ({names}); all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--quick", action="store_true", help="small loads: shows that it works, measures little")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often each figure is taken (default 5)")
    return parser


def _chosen(names: Sequence[str]) -> dict[str, Callable[[Bench], list[Figure]]]:
    every = {name: measure for members in BENCHMARKS.values() for name, measure in members.items()}
    unknown = set(names) - set(every) - set(BENCHMARKS)
    if unknown:
        _parser().error(f"no such benchmark: {', '.join(sorted(unknown))}")
    wanted = {member for name in names for member in BENCHMARKS.get(name, {name: None})}
    return {name: measure for name, measure in every.items() if not names or name in wanted}


def _about() -> dict[str, Any]:
    """Return versions and machine data on which the figures depend, without the name of the machine."""
    with EmbeddedServer() as server:
        banner = server.log
    found = [word for word in banner.replace(",", " ").split() if word.startswith("version=")]
    return {
        "python": platform.python_version(),
        "celery": version("celery"),
        "redis-py": version("redis"),
        "server": found[0].removeprefix("version=") if found else "?",
        "cpus": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "load_average_before": os.getloadavg()[0],
    }


def _write(path: Path, about: dict[str, Any], bench: Bench, figures: Sequence[Figure]) -> None:
    document = {
        **about,
        "rounds": bench.rounds,
        "quick": bench.quick,
        "problems": bench.problems,
        "figures": [figure.as_json() for figure in figures],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
