"""Write metrics as text for Prometheus, in its own format (0.0.4).

This module does not use prometheus_client. All values come from one look at the store, so there is no registry to keep.
``celery throttle metrics`` has to work without further packages, also from cron. That library would add 210 KB, a tenth
of a second for its import, and a collector as long as this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_throttle.core.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTENT_TYPE", "Metric", "Sample", "exposition"]

#: The Content-Type header of an HTTP response with this text.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class Sample:
    """One value of a metric.

    Attributes:
        labels: the labels; their control characters are escaped, because names of queues may have any.
        value: the number.
        suffix: the suffix of a value of a histogram.
    """

    labels: dict[str, str]
    value: float
    suffix: str = ""

    def __post_init__(self) -> None:
        self.labels.update({name: one_line(value) for name, value in self.labels.items()})


@dataclass(frozen=True)
class Metric:
    """A metric with its values.

    Attributes:
        name: the name of the metric.
        help: its help text.
        samples: its values.
        kind: ``gauge``, ``counter`` or ``histogram``.
    """

    name: str
    help: str
    samples: list[Sample] = field(default_factory=list)
    kind: str = "gauge"


def exposition(metrics: Iterable[Metric]) -> str:
    """Return metrics as text; labels may have any characters."""
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{each.suffix}{_labels(each.labels)} {_number(each.value)}" for each in metric.samples]
    return "\n".join([*lines, "# EOF", ""])


def _labels(labels: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
