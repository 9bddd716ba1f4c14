"""Metrics as text that Prometheus reads.

Written here, in some thirty lines, and not by prometheus_client: all that we have is read from the store at once, there
is no registry to keep, and ``celery throttle metrics`` is to work wherever the library does, also from cron. What that
library would add is 210 KB, a tenth of a second for its import, and a collector of ours around it just as long as this
file. The format is Prometheus' own (0.0.4).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_throttle.core.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTENT_TYPE", "Metric", "Sample", "exposition"]

#: What a web page that serves it has to say.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class Sample:
    """One value.

    Attributes:
        labels: what it is of; control characters in them are escaped, since names of queues may have any.
        value: the number.
        suffix: which of the values of a histogram it is.
    """

    labels: dict[str, str]
    value: float
    suffix: str = ""

    def __post_init__(self) -> None:
        self.labels.update({name: one_line(value) for name, value in self.labels.items()})


@dataclass(frozen=True)
class Metric:
    """What is measured.

    Attributes:
        name: of the metric.
        help: what it says.
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
