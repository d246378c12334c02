"""Decides whether a baseline predicts clearly better than a version, and says what to train instead.

Metrics of held-out rows vary with the rows that happen to be held out. So a baseline counts as clearly better only if
its error is smaller by a tenth of the version's, and by two standard errors of the version's error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from indb_tensile.job import Task

_LEAST_SHARE = 0.1  # of the version's error
_STANDARD_ERRORS = 2.0
# Whoever has trained one of these is advised to train boosting, and no other network.
_TABLE_NETWORKS = ("tabm", "ft_transformer", "residual_mlp", "dcn")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedVersion:
    """A published version and its metric on the held-out rows, beside the stored figure of its baseline.

    `architecture` is the type of its network, and `outputs` is the number of classes or values.
    """

    task: Task
    architecture: str
    outputs: int
    metric_name: str
    metric: float | None
    higher_is_better: bool
    baseline: Mapping[str, Any]

    def advice(self) -> str:
        """Return a sentence with both metrics and what to train; empty if the baseline is not clearly better."""
        value = self.baseline.get("metrics", {}).get(self.metric_name)
        if value is None or self.metric is None or "name" in self.baseline:
            return ""
        own, other = self._error(self.metric), self._error(value)
        if own <= 0 or other >= own * (1 - _clear_share(own, self.baseline.get("test_rows", 0))):
            return ""
        single = self.task is Task.CLASSIFICATION or (self.task is Task.REGRESSION and self.outputs == 1)
        trained = ["boosting"] if single else []
        trained += [] if self.architecture in _TABLE_NETWORKS else ["tabm"]
        ways = " or ".join(f"architecture => '{name}'" for name in trained)
        return (
            f"gradient boosting predicts the held-out rows better: {self.metric_name} {value:.4g}, and this version "
            f"{self.metric:.4g}" + (f"; train again with {ways}" if ways else "")
        )

    def _error(self, metric: float) -> float:
        """Return what is missing to a perfect prediction; all metrics that are better when higher are 1 at most."""
        return 1 - metric if self.higher_is_better else metric


def _clear_share(error: float, rows: int) -> float:
    """Return the share of a version's error by which that of another model must be smaller to be clearly smaller.

    Both errors are of the same `rows`. The share of wrong answers among n rows has a relative standard error of at
    most 1 / sqrt(n * share). That of a mean of squared errors is near 1 / sqrt(n).
    """
    return max(_LEAST_SHARE, _STANDARD_ERRORS / math.sqrt(max(1.0, rows * min(1.0, error))))
