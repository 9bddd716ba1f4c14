"""Metrics as text that Prometheus reads.

Written here, in some thirty lines, and not by prometheus_client: all that we have are gauges that are read from the
store at once, there is no registry to keep, and ``celery throttle metrics`` is to work wherever the library does, also
from cron. What that library would add is 210 KB, a tenth of a second for its import, and a collector of ours around it
just as long as this file. The text is valid in both formats, Prometheus' own (0.0.4) and OpenMetrics (1.0).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTENT_TYPE", "Metric", "Sample", "exposition"]

#: What a web page that serves it has to say.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class Sample:
    """One value, and the labels that tell what it is of."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Metric:
    """A gauge.

    Attributes:
        name: of the metric.
        help: what it says.
        samples: its values.
    """

    name: str
    help: str
    samples: list[Sample] = field(default_factory=list)


def exposition(metrics: Iterable[Metric]) -> str:
    """Return metrics as text; labels may have any characters."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
        lines += [f"{metric.name}{_labels(each.labels)} {_number(each.value)}" for each in metric.samples]
    return "\n".join([*lines, "# EOF", ""])


def _labels(labels: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
